// TCP connections: all are nonblocking and close-on-exec, and no wait is without a bound.
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

/// A listening socket and where others find it.
struct Listener {
  Descriptor socket;
  std::vector<IpAddress> addresses;
  uint16_t port = 0;
};

/// Listens on the interface, or on all without a name. Port 0: any free one. A port that is taken is awaited for
/// `waitPolicy`. SystemError if that cannot be.
Listener listenOn(const std::string& interfaceName, uint16_t port, std::chrono::milliseconds waitPolicy = {});

/// The next connection that waits, if there is one. `full` is set if the system is out of descriptors or memory.
std::optional<Descriptor> acceptFrom(const Descriptor& listener, bool& full);

/// Sets what keeps a control connection quick and its loss noticed. `timeout` 0: the system's own waitPolicy.
void tuneConnection(const Descriptor& socket, std::chrono::milliseconds timeout);

struct ConnectTarget {
  std::vector<IpAddress> addresses;  ///< tried in this order
  uint16_t port = 0;
  std::string interfaceName;   ///< where to connect from; empty: as the route says
  bool awaitListener = false;  ///< nobody listens there yet, perhaps: try again until the deadline
};

/// RemoteError if it cannot be reached; Health's failure if that comes first.
Descriptor connectTo(const ConnectTarget& target, const Deadline& deadline, const Health& health);

/// Two connected ends within this process.
std::pair<Descriptor, Descriptor> socketPair();

/// What a read or write came to.
struct Transfer {
  size_t bytes = 0;     ///< 0 with neither flag: nothing can be moved now
  bool closed = false;  ///< the other side has closed
  int error = 0;        ///< errno of a connection that is lost
};
Transfer readSome(const Descriptor& socket, std::span<std::byte> into);
Transfer writeSome(const Descriptor& socket, std::span<const std::byte> from);

/// Waits until the socket is ready for `events` of poll(), a while has passed, or the deadline has. Returns without
/// notice of which.
void waitFor(const Descriptor& socket, short events, const Deadline& deadline);

}  // namespace seqpar
