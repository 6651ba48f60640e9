// The input gates of one head, for kernels that apply them to scores and keys. Compiles everywhere.
#pragma once

#include "kernels/arch/mma.h"
#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

class HeadInputGates {
 public:
  HeadInputGates() = default;
  /// `gates` without data: read() is not called.
  SEQPAR_DEVICE HeadInputGates(const Input& gates, int type, int64_t batch, int head)
      : at_(static_cast<const char*>(gates.data)), stride_(gates.token), half_(type == seqparBfloat16) {
    if (at_ != nullptr) at_ += (batch * gates.batch + head * gates.head) * (half_ ? 2 : 4);
  }
  SEQPAR_DEVICE bool given() const { return at_ != nullptr; }
  SEQPAR_DEVICE float read(int64_t token) const { return valueOf(bitsOf(token)); }
  /// The same in two steps: only the second one waits for the load.
  SEQPAR_DEVICE uint32_t bitsOf(int64_t token) const {
    const int64_t index = token * stride_;
    if (half_) return reinterpret_cast<const uint16_t*>(at_)[index];
    return reinterpret_cast<const uint32_t*>(at_)[index];
  }
  SEQPAR_DEVICE float valueOf(uint32_t bits) const { return half_ ? ptx::lowOf<Bf16>(bits) : asFloat(bits); }

 private:
  const char* at_ = nullptr;
  int64_t stride_ = 0;
  bool half_ = false;
};

}  // namespace seqpar::attn
