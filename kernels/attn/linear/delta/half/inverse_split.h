// The inverse of a chunk's triangle (inverse.h) with merges of blocks as products of 16-bit operands, each a sum of two
// numbers: three products leave an error of 2^-16 of the terms for bf16, 2^-20 for fp16. The transpose of a block of
// the inverse V is a chain of two products, and accumulators of the first are the left operand of the second:
//     V21^T = -(V11^T L21^T) V22^T
// Needs two images of V^T in shared memory; four warps, one barrier.
#pragma once

#include "kernels/attn/linear/delta/half/inverse.h"

namespace seqpar::attn::delta::half {

/// T: the type of the tensors, as which the inverse is rounded afterwards. In fp16, large parts are infinite, and their
/// sums are computed again.
template <class T>
struct SplitInverse {
  static constexpr int kBytes = 2 * kSquareBytes;  ///< of the images
  Floats square;
  int images;  ///< of high and low parts of V^T

  /// Blocks of 32 x 32 of the diagonal, by the first two warps.
  SEQPAR_DEVICE void invertPairs(int warp) const {
    Inverse{square}.substitute();
    splitColumn();
    ptx::syncwarp();
    const int first = warp * 2 * kBlock, second = first + kBlock, lane = threadAgain() % 32;
    float c[2][4] = {};
    addBlocks(c, first, second, first, kBlock, lane);
    if (!allFinite(c)) recomputeBlock(c, first, second, first, second);
    ptx::syncwarp();  // L21 is read
    storeTransposed(c, second, first, lane);
    uint32_t x[2][4];
    split(x, c[0], c[1], 1);
    storeLeft(high(), first, second, x[0], lane);
    storeLeft(low(), first, second, x[1], lane);
  }
  /// Joins them, by the first four warps, which named barrier `barrier` syncs: between barriers of the CTA.
  SEQPAR_DEVICE void mergeHalves(int warp, int barrier) const {
    constexpr int kHalf = kRows / 2;
    const int row = warp / 2 * kBlock, column = kHalf + warp % 2 * kBlock, lane = threadAgain() % 32;
    float c[2][4] = {};
    addBlocks(c, row, column, row, kHalf - row, lane, kHalf);
    if (!allFinite(c)) recomputeBlock(c, row, column, row, kHalf);
    ptx::barrierSync(barrier, 4 * 32);  // L21 is read
    storeTransposed(c, column, row, lane);
  }

 private:
  SEQPAR_DEVICE SquareRows high() const { return {images}; }
  SEQPAR_DEVICE SquareRows low() const { return {images + kSquareBytes}; }

  /// Two tiles of accumulators, or their negatives, as left operands: high and low parts.
  SEQPAR_DEVICE static void split(uint32_t (&x)[2][4], const float (&c)[4], const float (&next)[4], float sign) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const pair = (i < 2 ? c : next) + i % 2 * 2;
      splitPair(x[0][i], x[1][i], sign * pair[0], sign * pair[1]);
    }
  }
  SEQPAR_DEVICE static void splitPair(uint32_t& high, uint32_t& low, float x, float y) {
    high = packInRange<T>(x, y);
    low = packInRange<T>(x - ptx::lowOf<T>(high), y - ptx::highOf<T>(high));
  }
  /// A thread's column of a block of the diagonal.
  SEQPAR_DEVICE void splitColumn() const {
    const int column = threadAgain(), first = column / kBlock * kBlock;
    SEQPAR_UNROLL
    for (int unit = 0; unit < kBlock / 8; ++unit) {
      uint32_t parts[2][4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* const from = square + (first + unit * 8 + 2 * i) * kSquare + column;
        splitPair(parts[0][i], parts[1][i], from[0], from[kSquare]);
      }
      ptx::store(high().unit(column, first / 8 + unit), parts[0]);
      ptx::store(low().unit(column, first / 8 + unit), parts[1]);
    }
  }
  /// c += the block of V^T at (row, column), from blocks of V^T at (row, term) of `terms` terms, and those at
  /// (i, column), i >= `start`.
  SEQPAR_DEVICE void addBlocks(float (&c)[2][4], int row, int column, int term, int terms, int lane, int start) const {
    SEQPAR_ROLLED
    for (int i = start; i <= column; i += kBlock) {
      float inner[2][4] = {};
      SEQPAR_ROLLED
      for (int m = term; m < term + terms; m += kBlock) {
        uint32_t a[4], b[2][4];
        loadLower(b, i, m, lane);
        loadLeft<true>(a, low(), row, m, lane);
        addTiles(inner, a, b[0]);
        loadLeft<true>(a, high(), row, m, lane);
        addTiles(inner, a, b[1]);
        addTiles(inner, a, b[0]);
      }
      uint32_t x[2][4];
      split(x, inner[0], inner[1], -1);
      accumulate<T, false>(c, x[1], high(), column, i, 0, 2, lane);
      accumulate<T, false>(c, x[0], low(), column, i, 0, 2, lane);
      accumulate<T, false>(c, x[0], high(), column, i, 0, 2, lane);
    }
  }
  SEQPAR_DEVICE void addBlocks(float (&c)[2][4], int row, int column, int term, int terms, int lane) const {
    addBlocks(c, row, column, term, terms, lane, column);
  }
  SEQPAR_DEVICE static void addTiles(float (&c)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    ptx::mmaM16N8K16<T>(c[0], a, b[0], b[1]);
    ptx::mmaM16N8K16<T>(c[1], a, b[2], b[3]);
  }
  /// The block of L at (row, term) as a right operand: its columns are terms.
  SEQPAR_DEVICE void loadLower(uint32_t (&b)[2][4], int row, int term, int lane) const {
    const float* const from = square + (row + lane / 4) * kSquare + term + lane % 4 * 2;
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      float x, y;
      ptx::loadPair(from + i / 2 * 8 * kSquare + i % 2 * 8, x, y);
      splitPair(b[0][i], b[1][i], x, y);
    }
  }
  SEQPAR_DEVICE void storeTransposed(const float (&c)[2][4], int row, int column, int lane) const {
    float* const to = square + (row + lane % 4 * 2) * kSquare + column + lane / 4;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) to[(8 * n + e % 2) * kSquare + e / 2 * 8] = c[n][e];
    }
  }
  /// Elements that are not finite, as sums of products in which an element 0 of L or V forgets.
  SEQPAR_DEVICE void recomputeBlock(float (&c)[2][4], int row, int column, int term, int start) const {
    float copy[2][4];  // in local memory
    SEQPAR_UNROLL
    for (int i = 0; i < 8; ++i) copy[i / 4][i % 4] = c[i / 4][i % 4];
    recomputeAll(copy, square, row, column, term, start);
    SEQPAR_UNROLL
    for (int i = 0; i < 8; ++i) c[i / 4][i % 4] = copy[i / 4][i % 4];
  }
  SEQPAR_DEVICE_NOINLINE static void recomputeAll(float (&c)[2][4], const Floats square, int row, int column, int term,
                                                  int start) {
    recompute(c, row, column, [&](int j, int t) {
      float sum = 0;
      for (int i = start; i <= t; ++i) {
        float inner = 0;
        for (int m = term; m < start; ++m) inner += forgetting(square[i * kSquare + m], square[m * kSquare + j]);
        sum -= forgetting(square[t * kSquare + i], inner);
      }
      return sum;
    });
  }
};

}  // namespace seqpar::attn::delta::half
