#include "bootstrap/token.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/sha256.h"

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
  const Digest whole = Sha256().add("seqpar token").add(text).finish();
  std::copy_n(whole.begin(), token.size(), token.begin());
  return token;
}

Token deriveToken(const Token& secret, std::string_view purpose, std::span<const std::byte> salt) {
  Token token{};
  const Digest whole = HmacSha256(secret).add("derived ").add(purpose).add(" ").add(salt).finish();
  std::copy_n(whole.begin(), token.size(), token.begin());
  return token;
}

bool equalTokens(const Token& one, const Token& other) {
  return equalSecrets(one, other);
}

uint64_t digest(std::span<const std::byte> bytes, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3u;
  hash ^= hash >> 32;
  hash *= 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

}  // namespace seqpar
