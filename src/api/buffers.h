// Checks of a collective's buffers.
#pragma once

#include <array>
#include <cstdint>

#include "base/arguments.h"
#include "base/thread_variable.h"
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

/// The buffers of the thread's latest checked call of a cache (known_calls.h) of a communicator of host memory:
/// repeated calls skip the checks of equal buffers. Tells from calls' ids, which are never used again.
class RecentBuffers {
 public:
  static constexpr size_t kMost = 5;

  /// Like a check of `buffers`: true if they are the buffers of the latest check, and no search for a CUDA driver is
  /// due. Else check() is called.
  template <typename Check>
  static void check(uint64_t call, const std::array<const void*, kMost>& buffers, const Check& check) {
    if (call_ == call && buffers_ == buffers && RecentSearch::notFound(CallScope::began())) {
      return CallScope::addBytes(bytes_);
    }
    call_ = 0;
    check();
    call_ = call;
    buffers_ = buffers;
    bytes_ = CallScope::bytes();
  }

 private:
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit uint64_t call_ = 0;
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit std::array<const void*, kMost> buffers_{};
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit size_t bytes_ = 0;
};

}  // namespace seqpar
