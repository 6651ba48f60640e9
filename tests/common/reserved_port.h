// A TCP port that no other program gets while a test lasts.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace seqpar::test {

/// A port of 127.0.0.1 that is bound without listening: the system assigns it to no client and to no request for any
/// port, and allows listening on it only with address reuse, which the library enables. A port that was merely probed
/// may be taken by another program before it is used.
class ReservedPort {
 public:
  /// Binds `expected`, or any free port if 0. Throws std::system_error.
  explicit ReservedPort(uint16_t expected = 0) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(expected);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (socket_ < 0 || setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
        bind(socket_, generic, length) != 0 || getsockname(socket_, generic, &length) != 0) {
      const std::system_error error(errno, std::generic_category(), "a port for a test");
      if (socket_ >= 0) close(socket_);
      throw error;
    }
    number_ = ntohs(address.sin_port);
  }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  ~ReservedPort() { close(socket_); }

  uint16_t number() const { return number_; }

 private:
  int socket_;
  uint16_t number_ = 0;
};

}  // namespace seqpar::test
