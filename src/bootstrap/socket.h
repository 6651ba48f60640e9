// TCP connections: all are nonblocking and close-on-exec, and every wait is bounded.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/health.h"
#include "bootstrap/address.h"
#include "bootstrap/descriptor.h"

namespace seqpar {

/// A listening socket and its public addresses.
struct Listener {
  Descriptor socket;
  std::vector<IpAddress> addresses;
  uint16_t port = 0;
};

/// Listens on the interface, or on all without a name. Port 0: any free one. Waits up to `waitPolicy` for a port in
/// use. Throws SystemError on failure.
Listener listenOn(const std::string& interfaceName, uint16_t port, std::chrono::milliseconds waitPolicy = {});

/// The next pending connection, if any. `error` becomes the error number of a failure, or 0; `source` identifies the
/// address of the other side.
std::optional<Descriptor> acceptFrom(const Descriptor& listener, int& error, uint64_t& source);

/// Sets options for low latency and loss detection of a control connection. `timeout` 0: the system's default.
void tuneConnection(const Descriptor& socket, std::chrono::milliseconds timeout);

struct ConnectTarget {
  std::vector<IpAddress> addresses;  ///< tried in this order
  uint16_t port = 0;
  std::string interfaceName;   ///< source interface; empty: as routed
  bool awaitListener = false;  ///< the listener may start later: retry until the deadline
  const char* name = "";       ///< for errors: "rank 0 at "
};

/// Starts to connect, from `interfaceName` if it is not empty. The socket is writable once the attempt has ended. None,
/// with errno in `error`, if it cannot start.
Descriptor startConnecting(const IpAddress& address, uint16_t port, const std::string& interfaceName, int& error);
/// 0 or the errno of an ended attempt.
int connectError(const Descriptor& socket);

/// Throws RemoteError if it cannot connect, or Health's failure if that is first.
Descriptor connectTo(const ConnectTarget& target, const Deadline& deadline, const Health& health);

/// Two connected sockets within this process.
std::pair<Descriptor, Descriptor> socketPair();

/// Result of a read or write.
struct SocketTransfer {
  size_t bytes = 0;     ///< 0 with neither flag: would block
  bool closed = false;  ///< the other side has closed
  int error = 0;        ///< errno of a lost connection
};
SocketTransfer readSome(const Descriptor& socket, std::span<std::byte> into);
SocketTransfer writeSome(const Descriptor& socket, std::span<const std::byte> from);

/// Waits until the socket is ready for `events` of poll(), a time slice is over, or the deadline has passed. Does not
/// report which.
void waitFor(const Descriptor& socket, short events, const Deadline& deadline);

}  // namespace seqpar
