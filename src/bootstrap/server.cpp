#include "bootstrap/server.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <vector>

#include "base/deadline.h"
#include "base/log.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxConnections = wire::kMaxRanks + 1024;
constexpr size_t kReadBytes = 65536;
constexpr milliseconds kDrainLimit{500};
constexpr milliseconds kAcceptPause{50};  // when the process is out of descriptors

}  // namespace

RootServer::RootServer(Listener listener, RootOptions options, bool local)
    : token_(options.token), listener_(std::move(listener)), root_(std::move(options)) {
  if (local) {
    auto [mine, peer] = socketPair();
    localId_ = root_.openOwn(Deadline::Clock::now());
    sockets_.emplace(localId_, std::move(mine));
    localPeer_ = std::move(peer);
  }
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
  } catch (const std::exception& error) {
    log(LogLevel::Warn, "the bootstrap's server ends: ", error.what());
  }
  sockets_.clear();
  listener_.socket.close();
  over_ = true;
}

void RootServer::serve() {
  std::optional<Deadline> drainBy;
  std::vector<pollfd> polled;
  std::vector<Root::Id> ids;
  while (true) {
    auto now = Deadline::Clock::now();
    polled.assign(1, {wake_.get(), POLLIN, 0});
    ids.clear();
    for (const auto& [id, socket] : sockets_) {
      ids.push_back(id);
      polled.push_back({socket.get(), static_cast<short>(root_.output(id).empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    const bool accepts = listener_.socket && now >= acceptAfter_ && sockets_.size() < kMaxConnections;
    if (accepts) polled.push_back({listener_.socket.get(), POLLIN, 0});
    poll(polled.data(), polled.size(), static_cast<int>((drainBy ? kAcceptPause : root_.interval()).count()));

    now = Deadline::Clock::now();
    wake_.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((polled[i + 1].revents & ~POLLOUT) != 0) readFrom(ids[i], now);
    }
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
  bool full = false;
  while (sockets_.size() < kMaxConnections) {
    auto socket = acceptFrom(listener_.socket, full);
    if (!socket) break;
    sockets_.emplace(root_.open(now), std::move(*socket));
  }
  if (full) acceptAfter_ = now + kAcceptPause;
}

void RootServer::readFrom(Root::Id id, Root::Time now) {
  std::array<std::byte, kReadBytes> bytes{};
  const Transfer got = readSome(sockets_.at(id), bytes);
  if (got.bytes > 0) return root_.receive(id, std::span(bytes).first(got.bytes), now);
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
  for (const auto& [id, socket] : sockets_) {
    if (id != localId_) tuneConnection(socket, root_.timeout());
  }
}

void RootServer::writeAll(Root::Time now) {
  std::vector<Root::Id> ids;
  for (const auto& [id, socket] : sockets_) ids.push_back(id);
  // The local rank is last: when it receives its data, the others' data is sent, and this process may end.
  std::for_each(ids.rbegin(), ids.rend(), [&](Root::Id id) { writeTo(id, now); });
}

void RootServer::writeTo(Root::Id id, Root::Time now) {
  auto& output = root_.output(id);
  while (!output.empty()) {
    const Transfer put = writeSome(sockets_.at(id), output);
    // A lost connection is reported when it is read, after its remaining input.
    if (put.error != 0) output.clear();
    if (put.error != 0 || put.bytes == 0) break;
    output.erase(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(put.bytes));
  }
  if (!output.empty() || !root_.finished(id)) return;
  root_.close(id, "was cut off", now);
  sockets_.erase(id);
}

bool RootServer::drained() const {
  for (const auto& [id, socket] : sockets_) {
    if (id == localId_ || !root_.output(id).empty()) return false;
  }
  return true;
}

}  // namespace seqpar
