// Checks of arguments that every C call makes alike: each names the call, the argument, its value and what was
// expected.
#pragma once

#include <cstddef>

#include "base/checked.h"

namespace seqpar {

/// A caller's array.
struct Buffer {
  const char* name = nullptr;
  const void* data = nullptr;
  size_t bytes = 0;
  size_t alignment = 1;  ///< of its elements
};

/// Throws InvalidArgument if `pointer` is null.
void requirePointer(const char* call, const char* argument, const void* pointer);

/// Refuses any overlap of `a` and `b`: InvalidArgument. With `sameIsFine`, the same address is allowed. Null and empty
/// buffers overlap nothing.
void requireApart(const char* call, const Buffer& a, const Buffer& b, bool sameIsFine);

}  // namespace seqpar
