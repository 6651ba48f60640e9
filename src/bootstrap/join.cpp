#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "bootstrap/client.h"
#include "bootstrap/wire.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

// Additional time for the root, which knows the missing ranks, to report them.
constexpr milliseconds kGrace{1000};

// For a root that drops this connection among other unproven ones.
constexpr int kAttempts = 8;
constexpr unsigned kPauseLeast = 10, kPauseSpread = 150;  // ms

enum class Progress { Done, Closed };

template <typename Move>
Progress moveAll(const Descriptor& socket, short events, size_t bytes, const Deadline& deadline, const Health& health,
                 Move move) {
  size_t moved = 0;
  while (moved < bytes) {
    const SocketTransfer step = move(moved);
    if (step.closed || step.error != 0) return Progress::Closed;
    moved += step.bytes;
    if (step.bytes > 0) continue;
    health.check();
    if (deadline.passed()) fail(seqparRemoteError, "joining the other ranks: no answer in time");
    waitFor(socket, events, deadline);
  }
  return Progress::Done;
}

bool receive(const Descriptor& socket, std::span<std::byte> into, const Deadline& deadline, const Health& health) {
  const auto step = [&](size_t at) { return readSome(socket, into.subspan(at)); };
  return moveAll(socket, POLLIN, into.size(), deadline, health, step) == Progress::Done;
}

Deadline deadlineOf(const JoinRequest& request) {
  return Deadline(request.timeout.count() == 0 ? request.timeout : request.timeout + kGrace);
}

/// Connects, then attempt(socket, request, health), until that returns something, a few times.
template <typename Attempt>
auto repeated(const ConnectTarget& target, const JoinRequest& request, const Health& health, Attempt attempt) {
  const Deadline deadline(request.timeout);
  std::minstd_rand random(std::random_device{}());
  for (int count = 1;; ++count) {
    auto done = attempt(connectTo(target, deadline, health), request, health);
    if (done || count == kAttempts || deadline.passed()) return done;
    std::this_thread::sleep_for(deadline.left(milliseconds(kPauseLeast + random() % kPauseSpread)));
  }
}

}  // namespace

std::optional<ProvenConnection> proveTo(Descriptor socket, const JoinRequest& request, const Health& health) {
  const Deadline deadline = deadlineOf(request);
  tuneConnection(socket, request.timeout);
  wire::Hello hello;
  hello.nonce = randomToken();
  hello.rank = static_cast<uint32_t>(request.rank);
  hello.nranks = static_cast<uint32_t>(request.nranks);
  hello.timeoutMs = static_cast<uint32_t>(std::min<long long>(request.timeout.count(), INT32_MAX));
  hello.pid = static_cast<uint32_t>(getpid());
  hello.host = localHostName();
  const wire::Bytes out = wire::encode(hello);
  const auto send = [&](size_t at) { return writeSome(socket, std::span(out).subspan(at)); };
  if (moveAll(socket, POLLOUT, out.size(), deadline, health, send) == Progress::Closed) return std::nullopt;

  std::array<std::byte, wire::kChallengeBytes> challengeBytes{};
  if (!receive(socket, challengeBytes, deadline, health)) return std::nullopt;
  const auto challenge = wire::decodeChallenge(challengeBytes);
  if (!challenge) fail(seqparRemoteError, "joining the other ranks: the answer is not from seqpar");
  if (challenge->wireVersion != wire::kVersion) {
    fail(seqparRemoteError, "joining the other ranks: rank ", request.rank, " has seqpar ",
         wire::versionText(SEQPAR_VERSION_CODE), " (wire version ", wire::kVersion, "), the root has ",
         wire::versionText(challenge->libraryVersion), " (wire version ", challenge->wireVersion, ")");
  }
  Session session = makeSession(request.token, out, challengeBytes);
  const wire::Bytes proof = wire::encodeProof(session.proof);
  const auto prove = [&](size_t at) { return writeSome(socket, std::span(proof).subspan(at)); };
  if (moveAll(socket, POLLOUT, proof.size(), deadline, health, prove) == Progress::Closed) return std::nullopt;
  return ProvenConnection{std::move(socket), session};
}

std::optional<RootConnection> awaitAnswer(ProvenConnection connection, const JoinRequest& request,
                                          const Health& health) {
  const Deadline deadline = deadlineOf(request);
  auto& [socket, session] = connection;
  // A text of the root is shown only after its record has proved that the root knows the secret.
  Opener opener(session.toRank);
  wire::Bytes payload;
  std::optional<wire::AnswerHead> head;
  while (!head || payload.size() < wire::kAnswerHeadBytes + head->textBytes) {
    wire::Bytes record(kRecordHeadBytes);
    if (!receive(socket, record, deadline, health)) return std::nullopt;
    record.resize(recordBytes(std::span<const std::byte>(record).first<kRecordHeadBytes>()));
    if (!receive(socket, std::span(record).subspan(kRecordHeadBytes), deadline, health)) return std::nullopt;
    if (!opener.open(record, payload)) {
      fail(seqparRemoteError, "joining the other ranks: the root does not know the secret of this communicator");
    }
    if (head || payload.size() < wire::kAnswerHeadBytes) continue;
    head = wire::decodeAnswerHead(std::span<const std::byte>(payload).first<wire::kAnswerHeadBytes>());
    if (!head) fail(seqparRemoteError, "joining the other ranks: the answer is not from seqpar");
  }
  const auto rest = payload.begin() + static_cast<std::ptrdiff_t>(wire::kAnswerHeadBytes + head->textBytes);
  wire::Bytes early(rest, payload.end());
  const std::string text = wire::readable(std::span(payload).subspan(wire::kAnswerHeadBytes, head->textBytes));
  if (!head->answer.joined) fail(seqparRemoteError, "joining the other ranks: ", text);
  if (head->answer.wireVersion != wire::kVersion || head->answer.libraryVersion != SEQPAR_VERSION_CODE) {
    fail(seqparRemoteError, "joining the other ranks: rank ", request.rank, " has seqpar ",
         wire::versionText(SEQPAR_VERSION_CODE), ", ", text, " has ", wire::versionText(head->answer.libraryVersion));
  }
  return RootConnection{std::move(socket), text, Sealer(session.toRoot), std::move(opener), std::move(early)};
}

std::optional<RootConnection> joinRoot(Descriptor socket, const JoinRequest& request, const Health& health) {
  auto proven = proveTo(std::move(socket), request, health);
  return proven ? awaitAnswer(std::move(*proven), request, health) : std::nullopt;
}

std::optional<ProvenConnection> proveAt(const ConnectTarget& target, const JoinRequest& request, const Health& health) {
  return repeated(target, request, health, proveTo);
}

std::optional<RootConnection> joinRootAt(const ConnectTarget& target, const JoinRequest& request,
                                         const Health& health) {
  return repeated(target, request, health, joinRoot);
}

}  // namespace seqpar
