#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace seqpar {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kLengthAt = 56;  // of the message's length in bits, in the last block

constexpr std::array<uint32_t, 64> kRounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t loadBigEndian(const std::byte* at) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) word = word << 8 | std::to_integer<uint32_t>(at[i]);
  return word;
}

}  // namespace

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    if (filled_ == 0 && bytes.size() >= kBlockBytes) {
      compress(bytes.data());
      bytes = bytes.subspan(kBlockBytes);
      continue;
    }
    const size_t part = std::min(bytes.size(), kBlockBytes - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), part);
    filled_ += part;
    bytes = bytes.subspan(part);
    if (filled_ < kBlockBytes) break;
    compress(block_.data());
    filled_ = 0;
  }
  return *this;
}

Digest Sha256::finish() {
  const uint64_t bits = bytes_ * 8;
  block_[filled_++] = std::byte{0x80};
  if (filled_ > kLengthAt) {
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::byte{});
    compress(block_.data());
    filled_ = 0;
  }
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::byte{});
  for (size_t i = 0; i < 8; ++i) block_[kLengthAt + i] = static_cast<std::byte>(bits >> (56 - 8 * i) & 0xff);
  compress(block_.data());
  Digest digest{};
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)) & 0xff);
  }
  return digest;
}

void Sha256::compress(const std::byte* block) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) w[i] = loadBigEndian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> added{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
}

HmacSha256::HmacSha256(std::span<const std::byte> key) {
  std::array<std::byte, kBlockBytes> pad{};
  if (key.size() > pad.size()) {
    const Digest digest = Sha256().add(key).finish();
    std::copy(digest.begin(), digest.end(), pad.begin());
  } else {
    std::copy(key.begin(), key.end(), pad.begin());
  }
  for (std::byte& byte : pad) byte ^= std::byte{0x36};
  inner_.add(std::span<const std::byte>(pad));
  for (std::byte& byte : pad) byte ^= std::byte{0x36} ^ std::byte{0x5c};
  outer_.add(std::span<const std::byte>(pad));
}

Digest HmacSha256::finish() {
  const Digest digest = inner_.finish();
  return outer_.add(std::span<const std::byte>(digest)).finish();
}

bool equalSecrets(std::span<const std::byte> one, std::span<const std::byte> other) {
  if (one.size() != other.size()) return false;
  std::byte different{};
  for (size_t i = 0; i < one.size(); ++i) different |= one[i] ^ other[i];
  return different == std::byte{};
}

}  // namespace seqpar
