// Device memory that operations in stream order use one after the other.
#pragma once

#include <cstddef>
#include <vector>

#include "device/cuda.h"

namespace seqpar {

/// Grows and is never given back before its end, so that graphs may keep its addresses. Of the device that is current
/// when it grows. Growing is allowed during a capture. Not thread safe.
class DeviceArena {
 public:
  /// All memory may be taken again, by work that follows the earlier work in stream order.
  void reset() noexcept;

  /// Memory aligned to 256, not initialized. Valid for the work enqueued until the next reset().
  std::byte* take(std::size_t bytes);

  template <typename Value>
  Value* take(std::size_t count) {
    return reinterpret_cast<Value*>(take(count * sizeof(Value)));
  }

 private:
  struct Chunk {
    DeviceMemory memory;
    std::size_t bytes = 0;
  };
  std::vector<Chunk> chunks_;
  std::size_t current_ = 0;  ///< chunk
  std::size_t used_ = 0;     ///< of it
};

}  // namespace seqpar
