// Memory for a measurement.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>

#include "gpu.h"
#include "group.h"

namespace seqpar::perf {

/// Memory of the communicator's kind, zero-filled. On GPUs it includes a host copy for the binary's own reads and
/// writes; upload() and download() do nothing on the host.
class Buffer {
 public:
  /// Distance in bytes of all buffers from an aligned address (-u). Set it before the first buffer is allocated.
  static inline size_t misaligned = 0;

  Buffer(size_t bytes, seqparComm_t comm) : bytes_(bytes) {
    int device = SEQPAR_HOST_DEVICE;
    require(seqparCommDevice(comm, &device), "seqparCommDevice", comm);
    onGpu_ = device != SEQPAR_HOST_DEVICE;
    require(seqparMemAlloc(&memory_, bytes + misaligned, comm), "seqparMemAlloc", comm);
    data_ = static_cast<std::byte*>(memory_) + misaligned;
    fill(0);
  }
  ~Buffer() { seqparMemFree(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// The pointer for collectives.
  void* data() { return data_; }
  /// The memory that the binary may access: host memory.
  template <typename Value>
  Value* as() {
    return static_cast<Value*>(onGpu_ ? hostCopy() : data_);
  }
  size_t bytes() const { return bytes_; }

  /// From the host's copy to the device.
  void upload() {
    if (onGpu_ && bytes_ > 0) gpuCopy(data_, hostCopy(), bytes_);
  }
  /// From the device to the host's copy.
  void download() {
    if (onGpu_ && bytes_ > 0) gpuCopy(hostCopy(), data_, bytes_);
  }
  /// Fills the memory at data().
  void fill(int byte) {
    if (bytes_ == 0) return;
    if (onGpu_) {
      gpuFill(data_, byte, bytes_);
    } else {
      std::memset(data_, byte, bytes_);
    }
  }
  /// Copies the memory at data() from a buffer of equal size.
  void copyFrom(const Buffer& other) {
    if (bytes_ == 0) return;
    if (onGpu_) {
      gpuCopy(data_, other.data_, bytes_);
    } else {
      std::memcpy(data_, other.data_, bytes_);
    }
  }

 private:
  void* hostCopy() {
    if (!copy_) copy_ = std::make_unique<std::byte[]>(bytes_);
    return copy_.get();
  }

  void* memory_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_;
  bool onGpu_ = false;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace seqpar::perf
