// Token decays as logarithms to base 2, summed over a block of 16 tokens: code without tensor-core instructions. Sums
// are clamped, so that differences are never inf - inf; a factor below 2^-126 is 0.
//
// Within a block, o_i needs q_i k_j 2^(L_i - L_j) for j <= i, with L the inclusive sums. Two methods:
// - relative to the block's start, q 2^L and k 2^-L: one exponent is positive, so the block's total must be small;
// - exact: L_i - L_j by halving. At level n = 8, 4, 2, 1, tokens with bit n set (the upper halves) are combined with
//   the lower half of the same 2 n tokens, both relative to the last token of the lower half: all exponents are <= 0.
#pragma once

#include <cstdint>

#include "kernels/arch/device.h"

namespace seqpar::attn {

constexpr int kBlockTokens = 16;          ///< tokens per step of the recurrence
constexpr float kLog2e = 1.44269504089F;  ///< factor from natural to base-2 logarithms
constexpr float kLeastLog2 = -160;        ///< per token: a factor of 0 in fp32, and the sum of 16 of them is exact
                                          ///< enough
constexpr float kForgottenLog2 = -150;    ///< at or below this, a factor is 0 in fp32, subnormals included
constexpr float kFlushedLog2 = -126;      ///< below it ptx::ex2Approx() is 0

/// The log2-decay of a token with the natural logarithm `gate`. NaN stays NaN.
SEQPAR_BOTH_INLINE float log2Decay(float gate) {
  const float scaled = gate * kLog2e;
  return scaled < kLeastLog2 ? kLeastLog2 : scaled;
}

/// Whether token `t` of a block is in an upper half of `level`.
SEQPAR_BOTH_INLINE constexpr bool inUpperHalf(int t, int level) {
  return (t & level) != 0;
}
/// The reference token of the tokens around it at `level`: the last of their lower half.
SEQPAR_BOTH_INLINE constexpr int referenceToken(int t, int level) {
  return (t & ~(2 * level - 1)) + level - 1;
}
/// The exponent of token `t` at `level`, for q in the upper half and for k in the lower half; never positive.
SEQPAR_BOTH_INLINE float levelExponent(const float* sums, int t, int level) {
  const float reference = sums[referenceToken(t, level)];
  return inUpperHalf(t, level) ? sums[t] - reference : reference - sums[t];
}
/// Whether the score of (query i, key j) is computed at `level`; each j < i at exactly one level.
SEQPAR_BOTH_INLINE constexpr bool madeAtLevel(int i, int j, int level) {
  return i / (2 * level) == j / (2 * level) && inUpperHalf(i, level) && !inUpperHalf(j, level);
}

}  // namespace seqpar::attn
