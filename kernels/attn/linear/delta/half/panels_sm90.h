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

/// Stores words[n] at columns 8 n and 8 n + 1 of a row, as far as they exist.
SEQPAR_DEVICE_NOINLINE void storeWords(uint16_t* to, int columns, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t words[4] = {a, b, c, d};
  SEQPAR_UNROLL
  for (int n = 0; n < 4; ++n) {
    if (8 * n < columns) to[8 * n] = static_cast<uint16_t>(words[n]);
    if (8 * n + 1 < columns) to[8 * n + 1] = static_cast<uint16_t>(words[n] >> 16);
  }
}
/// Transposes the words of four lanes: each lane had a pair of columns of tiles 0 to 3; lane p gets all of tile p.
SEQPAR_DEVICE void transposeWords(uint32_t (&words)[4], int p) {
  SEQPAR_UNROLL
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (p & bit) != 0;
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      if ((n & bit) != 0) continue;
      const uint32_t other = asBits(ptx::shflXor(asFloat(upper ? words[n] : words[n + bit]), bit));
      words[n] = upper ? other : words[n];
      words[n + bit] = upper ? words[n + bit] : other;
    }
  }
}
/// Stores a warp's tiles, rows from `row` on, as 32 columns from `column` on of an image (imageIndex()).
template <class T>
SEQPAR_DEVICE void storeTilesOfImage(uint16_t* to, int row, int column, const float (&c)[4][4]) {
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const int p = layout.lane % 4;
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) {
    uint32_t words[4];
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) words[n] = ptx::pack<T>(c[n][2 * h], c[n][2 * h + 1]);
    transposeWords(words, p);
    ptx::storeGlobal(to + imageIndex(layout.row(row, 2 * h), column + 8 * p), words);
  }
}
/// Stores a warp's tiles, rows from `row` on, as the tensor's first 32 columns: 16 bytes per lane, after a
/// transposition of four lanes' words.
template <class T>
SEQPAR_DEVICE void storeTiles(const TensorRows& to, int row, const float (&c)[4][4]) {
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const int p = layout.lane % 4;
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int t = layout.row(row, 2 * h);
    uint32_t words[4];
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) words[n] = ptx::pack<T>(c[n][2 * h], c[n][2 * h + 1]);
    if (!to.hasUnits(32)) {
      const int column = layout.column();
      if (t < to.rows) {
        storeWords(to.data + t * to.stride + column, to.columns - column, words[0], words[1], words[2], words[3]);
      }
      continue;
    }
    transposeWords(words, p);
    if (t < to.rows && 8 * p < to.columns) ptx::storeGlobal(to.data + t * to.stride + 8 * p, words);
  }
}

}  // namespace seqpar::attn::delta::half
