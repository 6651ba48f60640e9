// Sums of the logarithms of decays between tokens, on tensor cores: a matrix of zeros and ones in fp16, times the
// logarithms of 16 tokens. Differences of sums from a common start would cancel; these sums are exact.
#pragma once

#include "kernels/arch/mma.h"

namespace seqpar::attn {

constexpr uint32_t kHalfOne = 0x3c00, kHalfOnes = kHalfOne << 16 | kHalfOne;  ///< 1 in fp16, and a pair

/// The left operand of mma.m16n8k16 that selects, for each of 16 tokens, the tokens between it and its row's anchor:
/// without the earlier one, with the later one. anchor0: of rows 0 to 7, anchor1: of 8 to 15; -1: before the first.
SEQPAR_DEVICE void selectBetween(uint32_t (&ones)[4], int anchor0, int anchor1, int lane) {
  SEQPAR_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int token = lane / 4 + i % 2 * 8, anchor = i % 2 == 0 ? anchor0 : anchor1;
    const uint32_t tokens = ((1u << (token + 1)) - 1) ^ ((1u << (anchor + 1)) - 1);
    const uint32_t own = tokens >> (lane % 4 * 2 + i / 2 * 8);
    ones[i] = (own & 1u) * kHalfOne + (own & 2u) * (kHalfOne << 15);
  }
}

/// In blocks of 2 h tokens, the last token of the lower half.
SEQPAR_BOTH_INLINE constexpr int anchorOf(int token, int h) {
  return (token | (2 * h - 1)) - h;
}
/// Whether bit h is the highest one where the tokens differ: they are in different halves of a block of 2 h.
SEQPAR_BOTH_INLINE constexpr bool differAt(int t, int s, int h) {
  return (t ^ s) >= h && (t ^ s) < 2 * h;
}

}  // namespace seqpar::attn
