#include "bootstrap/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "base/env.h"
#include "base/error.h"
#include "bootstrap/descriptor.h"

namespace seqpar {
namespace {

std::optional<IpAddress> fromSystem(const sockaddr* system) {
  IpAddress address;
  if (system == nullptr) return std::nullopt;
  if (system->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, system, sizeof(in));
    std::memcpy(address.bytes.data(), &in.sin_addr, sizeof(in.sin_addr));
    return address;
  }
  if (system->sa_family != AF_INET6) return std::nullopt;
  sockaddr_in6 in{};
  std::memcpy(&in, system, sizeof(in));
  // A link-local address is only valid together with the reader's interface.
  if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr)) return std::nullopt;
  address.version = 6;
  std::memcpy(address.bytes.data(), &in.sin6_addr, sizeof(in.sin6_addr));
  return address;
}

/// The source address that the default route selects; no packet is sent.
std::optional<IpAddress> routedAddress(const IpAddress& somewhere) {
  const auto [target, length] = socketAddress(somewhere, 9);
  const Descriptor probe(socket(target.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || connect(probe.get(), reinterpret_cast<const sockaddr*>(&target), length) != 0) return std::nullopt;
  sockaddr_storage own{};
  socklen_t ownLength = sizeof(own);
  if (getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &ownLength) != 0) return std::nullopt;
  return fromSystem(reinterpret_cast<const sockaddr*>(&own));
}

// Bridges of containers and virtual machines use the same address on many hosts.
bool isPrivateBridge(std::string_view name) {
  return name.starts_with("docker") || name.starts_with("virbr") || name.starts_with("br-");
}

}  // namespace

SocketAddress socketAddress(const IpAddress& address, uint16_t port) {
  sockaddr_storage storage{};
  if (address.version == 4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, address.bytes.data(), sizeof(in.sin_addr));
    std::memcpy(&storage, &in, sizeof(in));
    return {storage, sizeof(in)};
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  std::memcpy(&in.sin6_addr, address.bytes.data(), sizeof(in.sin6_addr));
  std::memcpy(&storage, &in, sizeof(in));
  return {storage, sizeof(in)};
}

std::string addressText(const IpAddress& address, uint16_t port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(address.version == 4 ? AF_INET : AF_INET6, address.bytes.data(), text.data(), text.size());
  return address.version == 4 ? concat(text.data(), ":", port) : concat("[", text.data(), "]:", port);
}

std::string chosenInterface(const std::string& configured) {
  return envText("SEQPAR_SOCKET_IFNAME").value_or(configured);
}

std::vector<IpAddress> localAddresses(const std::string& interfaceName) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) failErrno("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  std::vector<IpAddress> matching, bridges, loopback;
  std::set<std::string> names;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const auto address = fromSystem(entry->ifa_addr);
    if (!address || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string name = entry->ifa_name;
    names.insert(name);
    if (!interfaceName.empty()) {
      if (name == interfaceName) matching.push_back(*address);
    } else if ((entry->ifa_flags & IFF_LOOPBACK) != 0) {
      loopback.push_back(*address);
    } else {
      (isPrivateBridge(name) ? bridges : matching).push_back(*address);
    }
  }
  if (matching.empty()) matching = std::move(bridges);
  if (matching.empty()) matching = std::move(loopback);
  if (matching.empty()) {
    std::string present;
    for (const auto& name : names) present += concat(present.empty() ? "" : ", ", name);
    fail(seqparSystemError, "network interface ", interfaceName.empty() ? "(any)" : interfaceName,
         ": no usable address; interfaces with one: ", present.empty() ? "none" : present);
  }
  std::stable_sort(matching.begin(), matching.end(),
                   [](const IpAddress& one, const IpAddress& other) { return one.version < other.version; });
  IpAddress elsewhere;
  elsewhere.bytes = {192, 0, 2, 1};  // reserved for documentation
  if (const auto routed = routedAddress(elsewhere)) {
    std::stable_partition(matching.begin(), matching.end(), [&](const IpAddress& one) { return one == *routed; });
  }
  return matching;
}

std::vector<IpAddress> resolveHost(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &first);
  if (code != 0) fail(seqparSystemError, "host \"", host, "\": ", gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(first, freeaddrinfo);
  std::vector<IpAddress> addresses;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    if (const auto address = fromSystem(entry->ai_addr)) addresses.push_back(*address);
  }
  if (addresses.empty()) fail(seqparSystemError, "host \"", host, "\": no usable address");
  return addresses;
}

std::string localHostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace seqpar
