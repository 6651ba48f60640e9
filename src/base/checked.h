// Sizes that callers give: products that cannot be counted, arrays that cannot lie in memory. Every call of the C
// interface takes the sizes of its arrays from here, before it does anything.
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

/// The product of `extents`, the last of which is the bytes of an element. InvalidArgument if one is negative, or if
/// there are more bytes than any array has. Extents of 0 count as 1 there, so that they hide no overflow of products of
/// the others.
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

/// The sum of sizes, InvalidArgument as countBytes().
inline size_t addBytes(const char* call, const char* argument, size_t some, size_t more) {
  uint64_t all = 0;
  if (__builtin_add_overflow(some, more, &all) || all > kMostBytes) {
    fail(seqparInvalidArgument, call, ": the size of ", argument, " overflows; expected at most ", kMostBytes,
         " bytes");
  }
  return static_cast<size_t>(all);
}

/// Refuses an array that no memory can hold, that would go on behind the last address, or that is not aligned to its
/// elements: InvalidArgument.
inline void requireArray(const char* call, const char* argument, const void* data, size_t bytes, size_t alignment) {
  if (bytes > kMostBytes) {
    fail(seqparInvalidArgument, call, ": ", argument, " has ", bytes, " bytes, expected at most ", kMostBytes);
  }
  if (data == nullptr || bytes == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address > UINTPTR_MAX - bytes) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", data, " with ", bytes,
         " bytes, expected it to end before the last address");
  }
  if (address % alignment != 0) {
    fail(seqparInvalidArgument, call, ": ", argument, " is ", data,
         ", expected an address that is a multiple of its "
         "elements' ",
         alignment, " bytes");
  }
}

}  // namespace seqpar
