// Checks of a collective's buffers.
#pragma once

#include "base/arguments.h"
#include "comm/communicator.h"
#include "device/device.h"

namespace seqpar {

/// The second part of requireMemory(): refuses the wrong kind of memory.
void requireKind(const char* call, const Buffer& buffer, const Communicator& comm);

/// Refuses what requireArray() refuses, device memory for a host communicator, and memory that the GPU cannot address
/// for a device communicator: InvalidArgument.
inline void requireMemory(const char* call, const Buffer& buffer, const Communicator& comm) {
  requireArray(call, buffer.name, buffer.data, buffer.bytes, buffer.alignment);
  if (buffer.bytes == 0 || buffer.data == nullptr) return;
  CallScope::addBytes(buffer.bytes);
  if (comm.device() == nullptr && RecentSearch::notFound(CallScope::began())) return;
  requireKind(call, buffer, comm);
}

}  // namespace seqpar
