// A CPU in the place of kernels/attn/linear/warpgroup_ops.h, over the fibers of warp_emulator.h. A product is made when
// its group is waited for, so that what overwrites an operand too early gives wrong numbers, and a race.
#pragma once

#include <cstdint>

namespace seqpar::attn::warpgroup {

void begin();
void commit();
void awaitAllBut(int left);
template <int kLeft>
void await() {
  awaitAllBut(kLeft);
}
template <int N>
void settle(float (&)[N][4]) {}
void publish();
template <int kCount>
void giveRegisters() {}
template <int kCount>
void takeRegisters() {}
inline void sync(int group) {
  warp::syncWarpgroup(group);
}

/// 16 terms of c (+)= a b, c of 64 x 8 * tiles. `a` in registers: 4 words; else NULL.
void multiplyLater(bool bf16, float (*c)[4], int tiles, const Operand& a, bool rowsA, int offsetA,
                   const uint32_t* words, const Operand& b, bool rowsB, int offsetB, bool add);

inline int stepOf(Terms terms, int rowsOfPanel, int step) {
  return terms == Terms::Rows ? step * 2 * kGroupBytes : step / 4 * rowsOfPanel * kRowBytes + step % 4 * 32;
}

template <class T, Terms kA, Terms kB, int kSteps, int N>
void multiplyAll(float (&c)[N][4], const Operand& a, int rowsA, const Operand& b, int rowsB, bool add) {
  for (int step = 0; step < kSteps; ++step) {
    multiplyLater(warp::kIsBf16<T>, c, N, a, kA == Terms::Rows, stepOf(kA, rowsA, step), nullptr, b, kB == Terms::Rows,
                  stepOf(kB, rowsB, step), add || step > 0);
  }
}

template <class T, Terms kB, int N>
void multiplyStep(float (&c)[N][4], const uint32_t (&a)[4], const Operand& b, int rowsB, int step, bool add) {
  multiplyLater(warp::kIsBf16<T>, c, N, {}, false, 0, a, b, kB == Terms::Rows, stepOf(kB, rowsB, step), add);
}

}  // namespace seqpar::attn::warpgroup
