// (I + L)^-1 of a chunk in place, L below the diagonal of `square` [kRows][kSquare]: by substitution in fp32 in blocks
// of 16 x 16, then by merges of blocks in three TF32 products (of 16-bit operands: inverse_split.h). Elements above the
// diagonal are scratch.
#pragma once

#include "kernels/attn/linear/delta/half/swizzled.h"

namespace seqpar::attn::delta::half {

struct Inverse {
  Floats square;

  /// Blocks of the diagonal, by the first two warps, a column per lane. An element 0 of L forgets.
  SEQPAR_DEVICE void substitute() const {
    const int column = ptx::thread(), j = column % kBlock, first = column - j;
    float* const lower = at(first, first);
    float x[kBlock], zero = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      float sums[2] = {};
      SEQPAR_UNROLL
      for (int k = 0; k < i; k += 4) {
        uint32_t words[4];
        ptx::load(words, lower + i * kSquare + k);
        SEQPAR_UNROLL
        for (int n = 0; n < 4; ++n) {
          if (k + n < i) sums[n % 2] += asFloat(words[n]) * x[k + n];
        }
      }
      x[i] = i == j ? 1 : i < j ? 0 : -(sums[0] + sums[1]);
      zero += 0 * sums[0] + 0 * sums[1];
    }
    const bool finite = ptx::voteAll(zero == 0);
    if (finite) {
      SEQPAR_UNROLL
      for (int i = 0; i < kBlock; ++i) lower[i * kSquare + j] = x[i];
    } else {
      substituteForgetting(square, first, j);
    }
    ptx::syncwarp();
  }
  /// Joins a warp's two blocks: -T22 (L21 T11), with the sums in parentheses above the diagonal. The first two warps.
  SEQPAR_DEVICE void mergePair(int warp) const {
    const int first = warp * 2 * kBlock, second = first + kBlock;
    multiply({part(second, first), part(first, first), kBlock}, at(first, second), 0, 0, 1);
    ptx::syncwarp();
    multiply({part(second, second), part(first, second), kBlock}, at(second, first), 0, 0, -1);
  }
  /// Joins the halves in the same way. Eight warps, between barriers.
  SEQPAR_DEVICE void mergeHalves(int warp) const {
    constexpr int kHalf = kRows / 2;
    const int row = warp / 4 * kBlock, column = warp % 4 * 8, first = column / kBlock * kBlock;
    multiplyEight({part(kHalf, first), part(first, 0), kHalf - first}, at(0, kHalf), row, column, 1);
    ptx::syncthreads();
    multiplyEight({part(kHalf, kHalf), part(0, kHalf), row + kBlock}, at(kHalf, 0), row, column, -1);
    ptx::syncthreads();
  }

 private:
  SEQPAR_DEVICE_NOINLINE static void substituteForgetting(const Floats square, int first, int j) {
    float* const lower = square + first * kSquare + first;
    float x[kBlock];
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      float sum = 0;
      SEQPAR_UNROLL
      for (int k = 0; k < i; ++k) {
        if (k >= j) sum += forgetting(lower[i * kSquare + k], x[k]);
      }
      x[i] = i == j ? 1 : i < j ? 0 : -sum;
    }
    ptx::syncwarp();
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) lower[i * kSquare + j] = x[i];
  }
  SEQPAR_DEVICE float* at(int row, int column) const { return square + row * kSquare + column; }
  SEQPAR_DEVICE Matrix part(int row, int column) const { return rowsOf(at(row, column), kSquare); }
  /// 8 columns from `column` on.
  SEQPAR_DEVICE static void multiplyEight(const Factors& f, float* to, int row, int column, float sign) {
    const int lane = threadAgain() % 32, g = lane / 4, p = lane % 4;
    float c[1][4] = {};
    SEQPAR_ROLLED
    for (int k = 0; k < f.terms; k += 8) {
      uint32_t high[4], low[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) divide(f.a.at(row + g + 8 * (i % 2), k + p + 4 * (i / 2)), high[i], low[i]);
      uint32_t b[2], rest[2];
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) divide(f.b.at(k + p + 4 * i, column + g), b[i], rest[i]);
      ptx::mmaM16N8K8Tf32(c[0], low, b[0], b[1]);
      ptx::mmaM16N8K8Tf32(c[0], high, rest[0], rest[1]);
      ptx::mmaM16N8K8Tf32(c[0], high, b[0], b[1]);
    }
    if (!allFinite(c)) repair(c, f, row, column);
    eachPair(c, row, column, [&](int i, int j, float x, float y) {
      to[i * kSquare + j] = sign * x;
      to[i * kSquare + j + 1] = sign * y;
    });
  }
  /// x as a sum of numbers in TF32.
  SEQPAR_DEVICE static void divide(float x, uint32_t& high, uint32_t& low) {
    high = ptx::roundToTf32(x);
    low = ptx::roundToTf32(x - asFloat(high));
  }
  SEQPAR_DEVICE_NOINLINE static void repair(float (&c)[1][4], const Factors f, int row, int column) {
    recompute(c, row, column, [&](int i, int j) { return delta::element(f, i, j); });
  }
  SEQPAR_DEVICE static void multiply(const Factors& factors, float* to, int row, int column, float sign) {
    float c[2][4] = {};
    multiplyTile(c, factors, row, column, true);
    if (!allFinite(c)) {
      recompute(c, row, column, [&](int i, int j) { return delta::element(factors, i, j); });
    }
    eachPair(c, row, column, [&](int i, int j, float x, float y) {
      to[i * kSquare + j] = sign * x;
      to[i * kSquare + j + 1] = sign * y;
    });
  }
};

}  // namespace seqpar::attn::delta::half
