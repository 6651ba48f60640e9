// Sizes that callers pass: rejects products that overflow and arrays that exceed memory. Every call of the C interface
// computes the sizes of its arrays with these functions before it does anything else.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"

namespace seqpar {

constexpr uint64_t kMostBytes = SEQPAR_MOST_BUFFER_BYTES;

/// A factor of an array's size, with its name in errors.
struct Extent {
  template <std::integral Number>
  Extent(const char* nameInErrors, Number number)
      : name(nameInErrors), value(static_cast<uint64_t>(number)), negative(number < 0) {}

  const char* name;
  uint64_t value;
  bool negative;
};

/// The product of `extents`; the last extent is the bytes of an element. InvalidArgument if one is negative or if the
/// product exceeds the largest possible array. In this check, extents of 0 count as 1, so that they hide no overflow of
/// the other extents' product.
inline size_t countBytes(const char* call, const char* argument, std::initializer_list<Extent> extents) {
  uint64_t all = 1;
  bool empty = false, tooMany = false;
  for (const Extent& extent : extents) {
    if (extent.negative) {
      fail(seqparInvalidArgument, call, ": ", extent.name, " is ", static_cast<int64_t>(extent.value),
           ", expected 0 or more");
    }
    empty = empty || extent.value == 0;
    tooMany = tooMany || __builtin_mul_overflow(all, std::max<uint64_t>(extent.value, 1), &all) || all > kMostBytes;
  }
  if (tooMany) {
    std::string product;
    for (const Extent& extent : extents)
      product += concat(product.empty() ? "" : " x ", extent.name, " ", extent.value);
    fail(seqparInvalidArgument, call, ": the size of ", argument, " overflows: ", product, "; expected at most ",
         kMostBytes, " bytes");
  }
  return empty ? 0 : static_cast<size_t>(all);
}

/// The sum of sizes; InvalidArgument as in countBytes().
inline size_t addBytes(const char* call, const char* argument, size_t some, size_t more) {
  uint64_t all = 0;
  if (__builtin_add_overflow(some, more, &all) || all > kMostBytes) {
    fail(seqparInvalidArgument, call, ": the size of ", argument, " overflows; expected at most ", kMostBytes,
         " bytes");
  }
  return static_cast<size_t>(all);
}

/// Throws what requireArray() throws.
[[noreturn]] void failArray(const char* call, const char* argument, const void* data, size_t bytes, size_t alignment);

/// Throws InvalidArgument for an array that exceeds memory, extends past the last address, or is not aligned to its
/// elements. `alignment` is a power of two.
inline void requireArray(const char* call, const char* argument, const void* data, size_t bytes, size_t alignment) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const bool anywhere = data == nullptr || bytes == 0;
  if (bytes <= kMostBytes && (anywhere || (address <= UINTPTR_MAX - bytes && (address & (alignment - 1)) == 0))) return;
  failArray(call, argument, data, bytes, alignment);
}

}  // namespace seqpar
