// Divides an array of fp32 elements into aligned parts.
#pragma once

#include <cstddef>

namespace seqpar::attn::linear {

/// With memory NULL it only counts.
class Floats {
 public:
  explicit Floats(float* memory) : memory_(memory) {}

  float* take(size_t count) {
    constexpr size_t kAlign = 16;  // fp32 values per cache line
    float* const part = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count + kAlign - 1) / kAlign * kAlign;
    return part;
  }
  size_t used() const { return used_; }

 private:
  float* memory_;
  size_t used_ = 0;
};

}  // namespace seqpar::attn::linear
