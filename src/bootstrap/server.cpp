#include "bootstrap/server.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <vector>

#include "base/deadline.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/shortage.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxConnections = wire::kMaxRanks + 1024;
constexpr size_t kReadBytes = 65536;
constexpr milliseconds kDrainLimit{500};
constexpr milliseconds kAcceptPause{50};      // when the process is out of descriptors
constexpr milliseconds kShortageLimit{1000};  // then the ranks that wait get an error

}  // namespace

RootServer::RootServer(Listener listener, RootOptions options, bool local)
    : token_(options.token), listener_(std::move(listener)), root_(std::move(options)) {
  problem_.reserve(kReservedText);
  if (local) {
    auto [mine, peer] = socketPair();
    localId_ = root_.openOwn(Deadline::Clock::now());
    sockets_[localId_].socket = std::move(mine);
    localPeer_ = std::move(peer);
  }
  spare_ = Descriptor(fcntl(wake_.get(), F_DUPFD_CLOEXEC, 0));
  worker_.emplace([this] { run(); });
}

RootServer::~RootServer() {
  if (!worker_->exists()) return;
  stopping_ = true;
  wake_.signal();
}

void RootServer::run() noexcept {
  try {
    serve();
  } catch (const std::bad_alloc&) {
    end(kNoMemory);
  } catch (const std::exception& error) {
    end(error.what());
  }
  sockets_.clear();
  listener_.socket.close();
  over_ = true;
}

/// Before the connections close, so that this rank's own finds the reason.
void RootServer::end(const char* why) noexcept {
  log(LogLevel::Warn, "the bootstrap's server ends: ", why);
  const std::lock_guard lock(mutex_);
  assignText(problem_, why);
}

std::string RootServer::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

void RootServer::serve() {
  std::optional<Deadline> drainBy;
  std::vector<pollfd> polled;
  std::vector<Root::Id> ids;
  while (true) {
    auto now = Deadline::Clock::now();
    polled.assign(1, {wake_.get(), POLLIN, 0});
    ids.clear();
    for (const auto& [id, link] : sockets_) {
      ids.push_back(id);
      const bool writes = pending(id, link) && !held(id, now);
      polled.push_back({link.socket.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
    }
    const bool accepts =
        listener_.socket && now >= acceptAfter_ && sockets_.size() < kMaxConnections && root_.mayOpen(now);
    if (accepts) polled.push_back({listener_.socket.get(), POLLIN, 0});
    const auto most = drainBy || shortSince_ ? kAcceptPause : root_.interval();
    poll(polled.data(), polled.size(), static_cast<int>(most.count()));

    now = Deadline::Clock::now();
    wake_.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((polled[i + 1].revents & ~POLLOUT) != 0) readFrom(ids[i], now);
    }
    if (accepts && polled.back().revents == 0) shortSince_.reset();
    if (accepts && polled.back().revents != 0) acceptAll(now);
    root_.tick(now);
    // Closed before any rank learns that all have arrived: the next rendezvous may then use the port.
    if (!root_.accepting()) listener_.socket.close();
    tuneMembers();
    writeAll(now);

    if (stopping_ && !drainBy) drainBy.emplace(kDrainLimit);
    if (root_.over(now) || (drainBy && (drained() || drainBy->passed()))) return;
  }
}

void RootServer::acceptAll(Root::Time now) {
  int error = 0;
  while (sockets_.size() < kMaxConnections && root_.mayOpen(now)) {
    uint64_t source = 0;
    auto socket = acceptFrom(listener_.socket, error, source);
    if (!socket) break;
    shortSince_.reset();
    sockets_[root_.open(now, source)].socket = std::move(*socket);
  }
  if (isShortage(error)) pauseAccepting(error, now);
}

void RootServer::pauseAccepting(int error, Root::Time now) {
  acceptAfter_ = now + kAcceptPause;
  if (!shortSince_) shortSince_ = now;
  if (now - *shortSince_ < kShortageLimit) return;
  root_.refuseJoins(std::generic_category().message(error), now);
  spare_.close();
  if (!answerOwnAt_) answerOwnAt_ = now + kDrainLimit;
}

void RootServer::readFrom(Root::Id id, Root::Time now) {
  std::array<std::byte, kReadBytes> bytes{};
  Link& link = sockets_.at(id);
  const Session* session = root_.session(id);
  if (session != nullptr && !link.opener) link.opener.emplace(session->toRoot);
  // Bytes after the handshake are records.
  const size_t most = session != nullptr ? bytes.size() : std::max<size_t>(root_.expected(id), 1);
  const SocketTransfer got = readSome(link.socket, std::span(bytes).first(most));
  if (got.bytes > 0) {
    if (!link.opener) return root_.receive(id, std::span(bytes).first(got.bytes), now);
    wire::Bytes payload;
    const bool genuine = link.opener->open(std::span(bytes).first(got.bytes), payload);
    if (!payload.empty()) root_.receive(id, payload, now);
    if (genuine) return;
    root_.close(id, "sent a record with a wrong tag", now);
    sockets_.erase(id);
    return;
  }
  if (!got.closed && got.error == 0) return;
  const bool lost = got.error != 0 && got.error != ECONNRESET && got.error != EPIPE;
  root_.close(id,
              lost ? concat("cannot be reached: ", std::generic_category().message(got.error))
                   : "closed its connection: the process is gone",
              now);
  sockets_.erase(id);
}

void RootServer::tuneMembers() {
  if (tuned_ || !root_.running()) return;
  tuned_ = true;
  for (const auto& [id, link] : sockets_) {
    if (id != localId_) tuneConnection(link.socket, root_.timeout());
  }
}

void RootServer::writeAll(Root::Time now) {
  std::vector<Root::Id> ids;
  for (const auto& [id, link] : sockets_) ids.push_back(id);
  // The local rank is last: when it receives its data, the others' data is sent, and this process may end.
  std::for_each(ids.rbegin(), ids.rend(), [&](Root::Id id) { writeTo(id, now); });
}

void RootServer::writeTo(Root::Id id, Root::Time now) {
  if (held(id, now)) return;
  Link& link = sockets_.at(id);
  auto& output = root_.output(id);
  const Session* session = root_.session(id);
  if (session != nullptr && !link.sealer) link.sealer.emplace(session->toRank);
  while (pending(id, link)) {
    if (link.unsent.empty() && link.sealer) link.sealer->seal(std::exchange(output, {}), link.unsent);
    if (link.unsent.empty()) link.unsent = std::exchange(output, {});
    const SocketTransfer put = writeSome(link.socket, link.unsent);
    // A lost connection is reported when it is read, after its remaining input.
    if (put.error != 0) link.unsent.clear();
    if (put.error != 0) output.clear();
    if (put.error != 0 || put.bytes == 0) break;
    link.unsent.erase(link.unsent.begin(), link.unsent.begin() + static_cast<std::ptrdiff_t>(put.bytes));
  }
  if (pending(id, link) && !root_.expired(id, now)) return;
  if (!root_.finished(id)) return;
  root_.close(id, "was cut off", now);
  sockets_.erase(id);
}

bool RootServer::pending(Root::Id id, const Link& link) const {
  return !link.unsent.empty() || !root_.output(id).empty();
}

bool RootServer::held(Root::Id id, Root::Time now) const {
  return id == localId_ && answerOwnAt_ && now < *answerOwnAt_;
}

bool RootServer::drained() const {
  for (const auto& [id, link] : sockets_) {
    if (id == localId_ || pending(id, link)) return false;
  }
  return true;
}

}  // namespace seqpar
