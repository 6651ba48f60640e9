// Argument checks shared by all C calls: each error names the call, the argument, its value and the expected value.
#pragma once

#include <cstddef>

#include "base/checked.h"

namespace seqpar {

/// A caller's array.
struct Buffer {
  const char* name = nullptr;
  const void* data = nullptr;
  size_t bytes = 0;
  size_t alignment = 1;  ///< of the elements
};

/// Throws InvalidArgument if `pointer` is null.
inline void requirePointer(const char* call, const char* argument, const void* pointer) {
  if (pointer == nullptr) fail(seqparInvalidArgument, call, ": ", argument, " is NULL");
}

/// Throws what requireDisjoint() throws.
[[noreturn]] void failOverlap(const char* call, const Buffer& a, const Buffer& b, bool sameIsFine);

/// Throws InvalidArgument if `a` and `b` overlap. With `sameIsFine`, equal addresses are allowed. Null and empty
/// buffers overlap nothing.
inline void requireDisjoint(const char* call, const Buffer& a, const Buffer& b, bool sameIsFine) {
  if (a.data == nullptr || b.data == nullptr || a.bytes == 0 || b.bytes == 0) return;
  if (sameIsFine && a.data == b.data) return;
  const auto beginA = reinterpret_cast<uintptr_t>(a.data);
  const auto beginB = reinterpret_cast<uintptr_t>(b.data);
  if (beginA < beginB + b.bytes && beginB < beginA + a.bytes) failOverlap(call, a, b, sameIsFine);
}

}  // namespace seqpar
