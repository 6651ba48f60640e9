// The 16-bit types of the forward's kernels: conversions, products, ranges.
#pragma once

#include "kernels/arch/cuda_types.h"
#include "kernels/arch/mma.h"

namespace seqpar::attn {

using Bfloat16 = __nv_bfloat16;
using Float16 = __half;

template <class T>
struct Numbers;

template <>
struct Numbers<Bfloat16> {
  /// A stage with a sum of log2-decays above this may be computed relative to its start: k 2^90 and its sums do not
  /// overflow.
  static constexpr float kSafeLog2 = -90;
  static constexpr float kLargest = 3e38F;
  static constexpr float kStateScale = 1;
  static constexpr bool kRaises = false;
  static SEQPAR_DEVICE float2 unpack(uint32_t two) {
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000U));
  }
  static SEQPAR_DEVICE uint32_t pack(float low, float high) { return floatsToBfloats(low, high); }
  static SEQPAR_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mmaM16N8K16<Bf16>(c, a, b0, b1);
  }
};

template <>
struct Numbers<Float16> {
  static constexpr float kSafeLog2 = -8;
  static constexpr float kLargest = 60000;
  static constexpr float kStateScale = 1.0F / 256;  ///< states are multiplied by this before rounding to fp16, because
                                                    ///< they may exceed its range
  static constexpr bool kRaises = true;  ///< decayed values are multiplied by a power of 2 (raiseOf()) before rounding,
                                         ///< because they may be subnormal in fp16; on sm_90 states and scores are
                                         ///< (roundingScaleOf()), because they may exceed its range, too
  static SEQPAR_DEVICE float2 unpack(uint32_t two) { return __half22float2(*reinterpret_cast<const __half2*>(&two)); }
  static SEQPAR_DEVICE uint32_t pack(float low, float high) { return floatsToHalves(low, high); }
  static SEQPAR_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mmaM16N8K16<Fp16>(c, a, b0, b1);
  }
};

/// The power of 2 that takes `largest`, not negative, to 2^13 to 2^14; kStateScale if it is infinite.
template <class T>
SEQPAR_DEVICE float roundingScaleOf(float largest) {
  constexpr uint32_t kInfinite = 255, kTarget = 127 + 127 + 13, kMost = 240;  // exponents with a bias of 127
  const uint32_t exponent = asBits(largest) >> 23;
  if (exponent == kInfinite) return Numbers<T>::kStateScale;
  return asFloat(min(kTarget - exponent, kMost) << 23);
}
/// 1 / x of a power of 2.
SEQPAR_DEVICE float inversePower(float x) {
  return asFloat((254U << 23) - asBits(x));
}

}  // namespace seqpar::attn
