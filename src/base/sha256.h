// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the admission of connections and the tags of their messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace seqpar {

/// A digest of SHA-256, or a key of HMAC-SHA-256.
using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text.data(), text.size()))); }
  /// The digest of all added bytes. The object is unusable afterwards.
  Digest finish();

 private:
  void compress(const std::byte* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  size_t filled_ = 0;
  uint64_t bytes_ = 0;
};

class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key);

  HmacSha256& add(std::span<const std::byte> bytes) {
    inner_.add(bytes);
    return *this;
  }
  HmacSha256& add(std::string_view text) {
    inner_.add(text);
    return *this;
  }
  /// The authentication code of all added bytes. The object is unusable afterwards.
  Digest finish();

 private:
  Sha256 inner_, outer_;
};

/// Takes the same time for any difference. False for different sizes.
bool equalSecrets(std::span<const std::byte> one, std::span<const std::byte> other);

}  // namespace seqpar
