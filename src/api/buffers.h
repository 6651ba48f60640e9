// Checks of the buffers that a collective was given.
#pragma once

#include "base/arguments.h"
#include "comm/communicator.h"

namespace seqpar {

/// Refuses what requireArray() refuses, device memory for a host communicator, and memory that the GPU cannot address
/// for a device communicator: InvalidArgument.
void requireMemory(const char* call, const Buffer& buffer, const Communicator& comm);

}  // namespace seqpar
