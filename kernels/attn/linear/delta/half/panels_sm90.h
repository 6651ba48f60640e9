// Tiles of the delta rule's kernels with wgmma: panels of 64 columns (kernels/arch/warpgroup.h). SquareRows are one
// panel.
#pragma once

#include "kernels/arch/warpgroup.h"
#include "kernels/attn/linear/delta/half/memory_sm90.h"
#include "kernels/attn/linear/delta/half/tokens.h"

namespace seqpar::attn::delta::half {

using warpgroup::Terms;

/// The operand that starts at byte `at` of shared memory.
SEQPAR_DEVICE warpgroup::Operand operand(int at) {
  return {ptx::sharedMemory() + at, KeyPanels<kRows>::kPanelBytes};
}
/// c (+)= a b, kTerms terms. Tiles with terms along the rows have kRows rows.
template <class T, Terms kA, Terms kB, int kTerms, int kTiles>
SEQPAR_DEVICE void multiplyTerms(float (&c)[kTiles][4], const warpgroup::Operand& a, const warpgroup::Operand& b,
                                 bool add) {
  warpgroup::multiplyAll<T, kA, kB, kTerms / kBlock>(c, a, kRows, b, kRows, add);
}

/// Stores elements of 16 rows from `row` on, columns from `column` on of a tile, as the tensor's first `width` columns.
template <class = void>
SEQPAR_DEVICE_NOINLINE void storeRowElements(const TensorRows to, int row, const SquareRows from, int column,
                                             int width) {
  SEQPAR_ROLLED
  for (int i = threadAgain() % 32; i < kBlock * width; i += 32) {
    const int t = row + i / width, c = i % width;
    if (t < to.rows && c < to.columns) to.data[t * to.stride + c] = *from.at(t, column + c);
  }
}
/// Rounds a warp's tiles and stores them as the tensor's first columns, whole rows of it at once: through the same rows
/// of `by`, columns from `column` on, which no other warp accesses.
template <class T, int kTiles>
SEQPAR_DEVICE void storeTiles(const TensorRows& to, int row, const SquareRows& by, int column,
                              const float (&c)[kTiles][4]) {
  constexpr int kOfRow = kTiles, kStep = 32 / kOfRow;  // units; rows
  static_assert(kStep % 4 == 0);
  const int lane = threadAgain() % 32;
  ptx::syncwarp();  // other lanes read words that this one replaces
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t words[4];
    roundTiles<T>(words, c[n], c[n + 1]);
    storeLeft(by, row, column + 8 * n, words, lane);
  }
  ptx::syncwarp();
  if (!to.hasUnits(8 * kTiles)) return storeRowElements(to, row, by, column, 8 * kTiles);
  const int first = row + lane / kOfRow, unit = lane % kOfRow;
  const int at = by.offset + first * by.kRowBytes + ((unit + column / 8) ^ first % 8) * 16;
  uint16_t* data = to.data + first * to.stride + unit * 8;
  const bool inside = unit * 8 < to.columns;
  SEQPAR_UNROLL
  for (int i = 0; i < kBlock; i += kStep, data += kStep * to.stride) {
    uint32_t words[4];  // row i + 4 has unit u at u ^ 4
    ptx::load(words, ptx::sharedMemory() + ((at ^ i % 8 * 16) + i * by.kRowBytes));
    if (inside && first + i < to.rows) ptx::storeGlobal(data, words);
  }
}

}  // namespace seqpar::attn::delta::half
