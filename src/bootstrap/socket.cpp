#include "bootstrap/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/shortage.h"
#include "bootstrap/token.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{50};          // bound on noticing a failure of Health
constexpr milliseconds kAddressWait{3000};  // per address if there are others
constexpr milliseconds kRetryFirst{10}, kRetryMost{200};

void setOption(const Descriptor& socket, int level, int name, int value) {
  // An option that the kernel does not support only costs speed.
  setsockopt(socket.get(), level, name, &value, sizeof(value));
}

bool bindTo(const Descriptor& socket, const IpAddress& address, uint16_t port) {
  const auto [storage, length] = socketAddress(address, port);
  return bind(socket.get(), reinterpret_cast<const sockaddr*>(&storage), length) == 0;
}

Descriptor tcpSocket(int version) {
  return Descriptor(::socket(version == 4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::optional<Listener> tryListen(const IpAddress& address, uint16_t port) {
  Listener listener;
  listener.socket = tcpSocket(address.version);
  if (!listener.socket) return std::nullopt;
  setOption(listener.socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.version == 6) setOption(listener.socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (!bindTo(listener.socket, address, port) || listen(listener.socket.get(), SOMAXCONN) != 0) return std::nullopt;
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return std::nullopt;
  listener.port = ntohs(own.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(&own)->sin_port
                                                 : reinterpret_cast<const sockaddr_in6*>(&own)->sin6_port);
  return listener;
}

std::optional<Listener> tryListenAnywhere(uint16_t port) {
  IpAddress any;
  any.version = 6;
  auto listener = tryListen(any, port);
  any.version = 4;
  if (!listener && errno != EADDRINUSE) listener = tryListen(any, port);
  return listener;
}

/// Without a listener, at a port in the ephemeral range, a connection can connect to itself.
bool metItself(const Descriptor& socket) {
  sockaddr_storage own{}, peer{};
  socklen_t ownLength = sizeof(own), peerLength = sizeof(peer);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &ownLength) != 0) return false;
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &peerLength) != 0) return false;
  const auto* ownBytes = reinterpret_cast<const char*>(&own);
  return ownLength == peerLength && std::equal(ownBytes, ownBytes + ownLength, reinterpret_cast<const char*>(&peer));
}

/// The connection, or errno.
std::pair<Descriptor, int> tryConnect(const IpAddress& address, const ConnectTarget& target, const Deadline& deadline,
                                      const Health& health) {
  int error = 0;
  Descriptor socket = startConnecting(address, target.port, target.interfaceName, error);
  if (!socket) return {Descriptor(), error};
  while (true) {
    health.check();
    pollfd waiting{socket.get(), POLLOUT, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(deadline.left(kSlice).count()));
    if (ready > 0) break;
    if (deadline.passed()) return {Descriptor(), ETIMEDOUT};
  }
  error = connectError(socket);
  if (error != 0) return {Descriptor(), error};
  return {std::move(socket), 0};
}

}  // namespace

Listener listenOn(const std::string& interfaceName, uint16_t port, milliseconds waitPolicy) {
  const auto until = Deadline::Clock::now() + waitPolicy;
  auto addresses = localAddresses(interfaceName);
  std::optional<Listener> listener;
  while (true) {
    listener = interfaceName.empty() ? tryListenAnywhere(port) : tryListen(addresses.front(), port);
    if (listener || errno != EADDRINUSE || Deadline::Clock::now() >= until) break;
    std::this_thread::sleep_for(kRetryMost);
  }
  if (!listener) {
    const std::string where = interfaceName.empty() ? "any interface" : interfaceName;
    failErrno(port == 0 ? concat("listening on ", where) : concat("listening on ", where, ", port ", port));
  }
  if (!interfaceName.empty()) addresses.resize(1);
  listener->addresses = std::move(addresses);
  return std::move(*listener);
}

std::optional<Descriptor> acceptFrom(const Descriptor& listener, int& error, uint64_t& source) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  const int number = accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
  error = number < 0 ? errno : 0;
  if (number < 0) return std::nullopt;
  if (peer.ss_family == AF_INET6) {
    source = digest(std::as_bytes(std::span(reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_addr.s6_addr)));
  } else {
    source = reinterpret_cast<const sockaddr_in*>(&peer)->sin_addr.s_addr;
  }
  return Descriptor(number);
}

void tuneConnection(const Descriptor& socket, milliseconds timeout) {
  const auto waitPolicy = static_cast<int>(std::min<long long>(timeout.count(), INT32_MAX));
  const int probe = timeout.count() == 0 ? 15 : std::clamp(waitPolicy / 4000, 1, 15);
  setOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  setOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  setOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, probe);
  setOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, probe);
  setOption(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  if (waitPolicy > 0) setOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, waitPolicy);
}

Descriptor startConnecting(const IpAddress& address, uint16_t port, const std::string& interfaceName, int& error) {
  Descriptor socket = tcpSocket(address.version);
  error = errno;
  if (!socket) return {};
  // The source port must not block a later listener on that port.
  setOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (!interfaceName.empty()) {
    const auto sources = localAddresses(interfaceName);
    const auto source = std::find_if(sources.begin(), sources.end(),
                                     [&](const IpAddress& one) { return one.version == address.version; });
    error = source == sources.end() ? EADDRNOTAVAIL : 0;
    if (error == 0 && !bindTo(socket, *source, 0)) error = errno;
    if (error != 0) return {};
  }
  const auto [storage, length] = socketAddress(address, port);
  error = connect(socket.get(), reinterpret_cast<const sockaddr*>(&storage), length) == 0 ? 0 : errno;
  if (error != 0 && error != EINPROGRESS) return {};
  return socket;
}

int connectError(const Descriptor& socket) {
  int error = 0;
  socklen_t errorLength = sizeof(error);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &errorLength);
  if (error != 0 || !metItself(socket)) return error;
  const linger reset{1, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  return ECONNREFUSED;
}

Descriptor connectTo(const ConnectTarget& target, const Deadline& deadline, const Health& health) {
  milliseconds pause = kRetryFirst;
  while (true) {
    std::string tried;
    for (size_t i = 0; i < target.addresses.size(); ++i) {
      const bool last = i + 1 == target.addresses.size() && !target.awaitListener;
      const Deadline turn = last ? deadline : Deadline(std::max(deadline.left(kAddressWait), milliseconds(1)));
      auto [socket, error] = tryConnect(target.addresses[i], target, turn, health);
      if (socket) return std::move(socket);
      if (isShortage(error)) {
        fail(seqparSystemError, "cannot connect to ", target.name, addressText(target.addresses[i], target.port), ": ",
             std::generic_category().message(error));
      }
      tried += concat(tried.empty() ? "" : "; ", addressText(target.addresses[i], target.port), ": ",
                      std::generic_category().message(error));
    }
    if (!target.awaitListener || deadline.passed()) fail(seqparRemoteError, "cannot connect to ", target.name, tried);
    health.check();
    std::this_thread::sleep_for(deadline.left(pause));
    pause = std::min(pause * 2, kRetryMost);
  }
}

std::pair<Descriptor, Descriptor> socketPair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) failErrno("socketpair");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

SocketTransfer readSome(const Descriptor& socket, std::span<std::byte> into) {
  const ssize_t got = recv(socket.get(), into.data(), into.size(), MSG_DONTWAIT);
  if (got > 0) return {static_cast<size_t>(got), false, 0};
  if (got == 0) return {0, true, 0};
  return {0, false, errno == EAGAIN || errno == EINTR ? 0 : errno};
}

SocketTransfer writeSome(const Descriptor& socket, std::span<const std::byte> from) {
  const ssize_t put = send(socket.get(), from.data(), from.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put >= 0) return {static_cast<size_t>(put), false, 0};
  return {0, false, errno == EAGAIN || errno == EINTR ? 0 : errno};
}

void waitFor(const Descriptor& socket, short events, const Deadline& deadline) {
  pollfd waiting{socket.get(), events, 0};
  poll(&waiting, 1, static_cast<int>(deadline.left(kSlice).count()));
}

}  // namespace seqpar
