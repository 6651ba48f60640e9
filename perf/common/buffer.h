// Memory for a measurement.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

#include "launch.h"

namespace seqpar::perf {

/// Memory of the kind that the communicator works on, already touched.
class Buffer {
 public:
  Buffer(size_t bytes, seqparComm_t comm) : bytes_(bytes) {
    require(seqparMemAlloc(&data_, bytes, comm), "seqparMemAlloc", comm);
    if (bytes > 0) std::memset(data_, 0, bytes);
  }
  ~Buffer() { seqparMemFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() { return data_; }
  template <typename Value>
  Value* as() {
    return static_cast<Value*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace seqpar::perf
