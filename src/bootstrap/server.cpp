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

HubServer::HubServer(Listener listener, HubOptions options, bool local)
    : token_(options.token), listener_(std::move(listener)), hub_(std::move(options)) {
  if (local) {
    auto [mine, peer] = socketPair();
    localId_ = hub_.open(Deadline::Clock::now());
    sockets_.emplace(localId_, std::move(mine));
    localPeer_ = std::move(peer);
  }
  worker_.emplace([this] { run(); });
}

HubServer::~HubServer() {
  if (!worker_->exists()) return;
  stopping_ = true;
  wake_.signal();
}

void HubServer::run() noexcept {
  try {
    serve();
  } catch (const std::exception& error) {
    log(LogLevel::Warn, "the bootstrap's server ends: ", error.what());
  }
  sockets_.clear();
  listener_.socket.close();
  over_ = true;
}

void HubServer::serve() {
  std::optional<Deadline> drainBy;
  std::vector<pollfd> polled;
  std::vector<Hub::Id> ids;
  while (true) {
    auto now = Deadline::Clock::now();
    polled.assign(1, {wake_.get(), POLLIN, 0});
    ids.clear();
    for (const auto& [id, socket] : sockets_) {
      ids.push_back(id);
      polled.push_back({socket.get(), static_cast<short>(hub_.output(id).empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    const bool accepts = listener_.socket && now >= acceptAfter_ && sockets_.size() < kMaxConnections;
    if (accepts) polled.push_back({listener_.socket.get(), POLLIN, 0});
    poll(polled.data(), polled.size(), static_cast<int>((drainBy ? kAcceptPause : hub_.interval()).count()));

    now = Deadline::Clock::now();
    wake_.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((polled[i + 1].revents & ~POLLOUT) != 0) readFrom(ids[i], now);
    }
    if (accepts && polled.back().revents != 0) acceptAll(now);
    hub_.tick(now);
    // Closed before anyone learns that all are there: the port may then be used for the next meeting.
    if (!hub_.accepting()) listener_.socket.close();
    tuneMembers();
    writeAll(now);

    if (stopping_ && !drainBy) drainBy.emplace(kDrainLimit);
    if (hub_.over(now) || (drainBy && (drained() || drainBy->passed()))) return;
  }
}

void HubServer::acceptAll(Hub::Time now) {
  bool full = false;
  while (sockets_.size() < kMaxConnections) {
    auto socket = acceptFrom(listener_.socket, full);
    if (!socket) break;
    sockets_.emplace(hub_.open(now), std::move(*socket));
  }
  if (full) acceptAfter_ = now + kAcceptPause;
}

void HubServer::readFrom(Hub::Id id, Hub::Time now) {
  std::array<std::byte, kReadBytes> bytes{};
  const Transfer got = readSome(sockets_.at(id), bytes);
  if (got.bytes > 0) return hub_.receive(id, std::span(bytes).first(got.bytes), now);
  if (!got.closed && got.error == 0) return;
  const bool lost = got.error != 0 && got.error != ECONNRESET && got.error != EPIPE;
  hub_.close(id,
             lost ? concat("cannot be reached: ", std::generic_category().message(got.error))
                  : "closed its connection: the process is gone",
             now);
  sockets_.erase(id);
}

void HubServer::tuneMembers() {
  if (tuned_ || !hub_.running()) return;
  tuned_ = true;
  for (const auto& [id, socket] : sockets_) {
    if (id != localId_) tuneConnection(socket, hub_.timeout());
  }
}

void HubServer::writeAll(Hub::Time now) {
  std::vector<Hub::Id> ids;
  for (const auto& [id, socket] : sockets_) ids.push_back(id);
  // The local rank last: what it learns is on its way to the others, and this process may then end.
  std::for_each(ids.rbegin(), ids.rend(), [&](Hub::Id id) { writeTo(id, now); });
}

void HubServer::writeTo(Hub::Id id, Hub::Time now) {
  auto& output = hub_.output(id);
  while (!output.empty()) {
    const Transfer put = writeSome(sockets_.at(id), output);
    // A lost connection says so when it is read, after what it still brings.
    if (put.error != 0) output.clear();
    if (put.error != 0 || put.bytes == 0) break;
    output.erase(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(put.bytes));
  }
  if (!output.empty() || !hub_.finished(id)) return;
  hub_.close(id, "was cut off", now);
  sockets_.erase(id);
}

bool HubServer::drained() const {
  for (const auto& [id, socket] : sockets_) {
    if (id == localId_ || !hub_.output(id).empty()) return false;
  }
  return true;
}

}  // namespace seqpar
