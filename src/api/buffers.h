// Checks of the buffers that a collective was given.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.h"

namespace seqpar {

struct Buffer {
  const char* name = nullptr;
  const void* data = nullptr;
  size_t bytes = 0;
  size_t alignment = 1;  ///< of its elements
};

/// Refuses what requireArray() refuses, device memory for a host communicator, and memory that the GPU cannot address
/// for a device communicator: InvalidArgument.
void requireMemory(const char* call, const Buffer& buffer, const Communicator& comm);

/// Refuses any overlap of `a` and `b`: InvalidArgument. With `sameIsFine`, the same address is allowed. Null and empty
/// buffers overlap nothing.
void requireApart(const char* call, const Buffer& a, const Buffer& b, bool sameIsFine);

}  // namespace seqpar
