// Device memory that operations reuse in stream order.
#pragma once

#include <cstddef>
#include <vector>

#include "device/cuda.h"

namespace seqpar {

/// Grows, and frees its memory only in the destructor, so that graphs may keep its addresses. Allocates on the device
/// that is current when it grows. May grow during a capture. Not thread safe.
class DeviceArena {
 public:
  /// Marks all memory as free for work that follows the earlier work in stream order.
  void reset() noexcept;

  /// Memory aligned to 256 bytes, not initialized. Valid for work that is enqueued before the next reset().
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
  std::size_t current_ = 0;  ///< chunk in use
  std::size_t used_ = 0;     ///< bytes used of that chunk
};

}  // namespace seqpar
