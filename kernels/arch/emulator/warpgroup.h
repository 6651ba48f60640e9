// Instructions of kernels/arch/wgmma.h and warpgroup.h on an emulated CTA. A product is computed when its group is
// waited for, so that an operand that is overwritten too early gives wrong results, and a race.
#pragma once

#include <cstdint>

namespace seqpar::warpgroup {

inline void arrive() {}
void commit();
void wait(int left);
template <int kLeft>
void wait() {
  wait(kLeft);
}
template <int N>
void fenceOperand(float (&)[N][4]) {}
void fenceProxyAsync();
template <int kCount>
void setmaxnregDec() {}
template <int kCount>
void setmaxnregInc() {}
void sync(int group);

/// 16 terms of c (+)= a b, c of 64 x 8 * tiles. a, b: matrix descriptors; `words`: 4 words of `a` in registers,
/// otherwise NULL.
void multiplyLater(bool bf16, float (*c)[4], int tiles, uint64_t a, bool rowsA, const uint32_t* words, uint64_t b,
                   bool rowsB, bool add);

}  // namespace seqpar::warpgroup
