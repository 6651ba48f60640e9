// Admission of connections by the root: their handshakes, their number, and the ranks that join.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "bootstrap/root.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHelloLimit{3000};  // for the handshake of a connection

}  // namespace

bool Root::mayOpen(Time now) const {
  return strangers_.mayAdd(now);
}

Root::Id Root::open(Time now, uint64_t source) {
  const Id id = nextId_++;
  if (const auto dropped = strangers_.add(id, source, now)) {
    connections_.at(*dropped).finished = true;
    connections_.at(*dropped).output.clear();
  }
  Connection& connection = connections_[id];
  connection.until = now + kHelloLimit;
  connection.heard = connection.sent = now;
  return id;
}

void Root::refuseJoins(const std::string& why, Time now) {
  if (state_ == State::Joining) failAll(concat(options_.name, " cannot accept connections: ", why), now);
}

void Root::forgetUnproven(Id id) {
  strangers_.forget(id);
}

Root::Id Root::openOwn(Time now) {
  const Id id = open(now);
  connections_.at(id).until = Time::max();
  forgetUnproven(id);
  return id;
}

size_t Root::expected(Id id) const {
  const Connection& connection = connections_.at(id);
  if (connection.proven) return 0;
  const size_t whole = connection.hello ? wire::kProofBytes : wire::kHelloBytes;
  return whole - connection.greeting.size();
}

const Session* Root::session(Id id) const {
  const Connection& connection = connections_.at(id);
  return connection.proven ? &*connection.session : nullptr;
}

void Root::challenge(Connection& connection) {
  connection.hello = wire::decodeHello(std::span<const std::byte, wire::kHelloBytes>(connection.greeting));
  connection.finished = !connection.hello;
  if (!connection.hello) return;
  wire::Challenge challenge;
  challenge.nonce = randomToken();
  connection.output = wire::encode(challenge);
  connection.session = makeSession(options_.token, connection.greeting, connection.output);
  connection.greeting.clear();
  if (connection.hello->wireVersion == wire::kVersion) return;
  // Another version cannot prove itself; it learns this version from the challenge.
  connection.finished = true;
  log(LogLevel::Warn, options_.name, " refused a connection with wire version ", connection.hello->wireVersion,
      " (seqpar ", wire::versionText(connection.hello->libraryVersion), "), expected ", wire::kVersion);
}

void Root::admit(Connection& connection, Id id, Time now) {
  const auto proof = wire::decodeProof(std::span<const std::byte, wire::kProofBytes>(connection.greeting));
  connection.greeting.clear();
  if (!proof || !equalSecrets(*proof, connection.session->proof)) {
    connection.finished = true;
    return;
  }
  connection.proven = true;
  const auto& hello = connection.hello;
  if (state_ == State::Failed) return refuse(connection, failure_, now);
  if (state_ != State::Joining) {
    return refuse(connection, concat("rank ", hello->rank, " is late: all ranks have already joined ", options_.name),
                  now);
  }
  std::string wrong;
  if (hello->libraryVersion != SEQPAR_VERSION_CODE) {
    wrong = concat("rank ", hello->rank, " has seqpar ", wire::versionText(hello->libraryVersion), ", ", options_.name,
                   " has ", wire::versionText(SEQPAR_VERSION_CODE));
  } else if (hello->nranks == 0) {
    wrong = concat("rank ", hello->rank, " gave nranks 0, expected at least 1");
  } else if (!seats_.empty() && hello->nranks != seats_.size()) {
    const auto first = std::find_if(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.joined; });
    wrong = concat("rank ", hello->rank, " (", hello->host, ", pid ", hello->pid, ") gave nranks ", hello->nranks, ", ",
                   first->name, " gave ", seats_.size());
  } else if (hello->rank >= hello->nranks) {
    wrong = concat("rank ", hello->rank, " (", hello->host, ", pid ", hello->pid, ") is out of range, expected 0..",
                   hello->nranks - 1);
  } else if (!seats_.empty() && seats_[hello->rank].joined) {
    wrong = concat("rank ", hello->rank, " is taken twice: by (", hello->host, ", pid ", hello->pid, ") and by ",
                   seats_[hello->rank].name);
  }
  if (wrong.empty()) return join(connection, id, *hello, now);
  failAll(wrong, now);
  refuse(connection, wrong, now);
}

void Root::join(Connection& connection, Id id, const wire::Hello& hello, Time now) {
  if (!firstJoin_) {
    firstJoin_ = now;
    reminder_.emplace(now);
    timeout_ = milliseconds(hello.timeoutMs);
    seats_.resize(hello.nranks);
  }
  Seat& seat = seats_[hello.rank];
  seat.connection = id;
  seat.joined = true;
  seat.name = concat("rank ", hello.rank, " (", hello.host, ", pid ", hello.pid, ")");
  connection.rank = hello.rank;
  connection.until = Time::max();
  if (!std::all_of(seats_.begin(), seats_.end(), [](const Seat& one) { return one.joined; })) return;
  state_ = State::Running;
  ran_ = true;
  reminder_.reset();
  wire::Answer answer;
  answer.joined = true;
  answer.text = options_.name;
  for (auto& [other, client] : connections_) {
    if (!client.rank) {
      client.finished = true;
      continue;
    }
    client.output = wire::encode(answer);
    client.heard = client.sent = now;
  }
}

void Root::refuse(Connection& connection, const std::string& why, Time now) {
  wire::Answer answer;
  answer.text = why;
  connection.output = wire::encode(answer);
  connection.finished = true;
  connection.until = now + kRefusalLimit;
}

}  // namespace seqpar
