// Internet addresses: of this host, by interface, and of other hosts, by name.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace seqpar {

/// An IPv4 (first 4 bytes) or IPv6 address, in network order.
struct IpAddress {
  int version = 4;
  std::array<unsigned char, 16> bytes{};
  bool operator==(const IpAddress&) const = default;
};

/// An address in the form of the system calls.
using SocketAddress = std::pair<sockaddr_storage, socklen_t>;
SocketAddress socketAddress(const IpAddress& address, uint16_t port);

/// "10.0.0.1:80" or "[::1]:80".
std::string addressText(const IpAddress& address, uint16_t port);

/// SEQPAR_SOCKET_IFNAME, or else `configured`.
std::string chosenInterface(const std::string& configured);

/// The addresses of the interface or, without a name, those that other hosts may reach, best first, with loopback only
/// as a last resort. Throws SystemError if there is none.
std::vector<IpAddress> localAddresses(const std::string& interfaceName);

/// The addresses of a host, by name or number. Throws SystemError if there is none.
std::vector<IpAddress> resolveHost(const std::string& host);

/// This host's name, for messages.
std::string localHostName();

}  // namespace seqpar
