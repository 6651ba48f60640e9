#include "bootstrap/token.h"

#include <sys/random.h>

#include <cerrno>

#include "base/error.h"

namespace seqpar {

Token randomToken() {
  Token token{};
  size_t have = 0;
  while (have < token.size()) {
    const ssize_t got = getrandom(token.data() + have, token.size() - have, 0);
    if (got < 0 && errno != EINTR) failErrno("getrandom");
    if (got > 0) have += static_cast<size_t>(got);
  }
  return token;
}

Token deriveToken(std::string_view text) {
  Token token{};
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  uint64_t word = 0;
  for (size_t i = 0; i < token.size(); ++i) {
    if (i % 8 == 0) word = digest(bytes, word + i + 1);
    token[i] = static_cast<std::byte>(word >> (8 * (i % 8)) & 0xff);
  }
  return token;
}

bool equalTokens(const Token& one, const Token& other) {
  std::byte different{};
  for (size_t i = 0; i < one.size(); ++i) different |= one[i] ^ other[i];
  return different == std::byte{};
}

uint64_t digest(std::span<const std::byte> bytes, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3u;
  hash ^= hash >> 32;
  hash *= 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

}  // namespace seqpar
