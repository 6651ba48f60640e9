// Integers in messages: little endian, at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace seqpar::wire {

template <typename Number>
void put(std::span<std::byte> bytes, size_t at, Number value) {
  for (size_t i = 0; i < sizeof(Number); ++i) {
    bytes[at + i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
  }
}

template <typename Number>
Number take(std::span<const std::byte> bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) value |= std::to_integer<uint64_t>(bytes[at + i]) << (8 * i);
  return static_cast<Number>(value);
}

}  // namespace seqpar::wire
