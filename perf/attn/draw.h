// Pseudo-random values of a layer's arrays.
#pragma once

namespace seqpar::perf {

/// Pseudo-random values in [0, 1), determined by the seed.
class Draw {
 public:
  explicit Draw(unsigned seed) : state_(seed) {}
  float next() {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<float>(state_ >> 16) * 0x1p-16f;
  }

 private:
  unsigned state_;
};

}  // namespace seqpar::perf
