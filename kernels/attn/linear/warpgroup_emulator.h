// CPU emulation of kernels/attn/linear/warpgroup_ops.h, with the fibers of warp_emulator.h. A product is computed when
// its group is waited for, so that an operand that is overwritten too early gives wrong results, and a race.
#pragma once

#include <cstdint>

#include "kernels/attn/linear/wgmma.cuh"

namespace seqpar::attn::warpgroup {

inline void arrive() {}
void commit();
void awaitAllBut(int left);
template <int kLeft>
void wait() {
  awaitAllBut(kLeft);
}
template <int N>
void fenceOperand(float (&)[N][4]) {}
void fenceProxyAsync();
template <int kCount>
void setmaxnregDec() {}
template <int kCount>
void setmaxnregInc() {}
inline void sync(int group) {
  warp::syncWarpgroup(group);
}

/// 16 terms of c (+)= a b, c of 64 x 8 * tiles. `words`: 4 words of `a` in registers; otherwise NULL.
void multiplyLater(bool bf16, float (*c)[4], int tiles, Matrix a, bool rowsA, const uint32_t* words, Matrix b,
                   bool rowsB, bool add);

template <bool kBf16, int kTransposeA, int kTransposeB, int kTiles>
void wgmma(float (&c)[kTiles][4], Matrix a, Matrix b, bool add) {
  multiplyLater(kBf16, c, kTiles, a, kTransposeA != 0, nullptr, b, kTransposeB != 0, add);
}
template <bool kBf16, int kTransposeB, int kTiles>
void wgmma(float (&c)[kTiles][4], const uint32_t (&a)[4], Matrix b, bool add) {
  multiplyLater(kBf16, c, kTiles, {}, false, a, b, kTransposeB != 0, add);
}

}  // namespace seqpar::attn::warpgroup
