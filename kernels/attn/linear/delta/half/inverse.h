// (I + L)^-1 of a chunk in place, L below the diagonal of `square` [kRows][kSquare]: by substitution in fp32 in blocks
// of 16 x 16, then by merges of blocks in three TF32 products. Elements above the diagonal are scratch.
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
  /// Joins the halves in the same way. All threads, between barriers.
  SEQPAR_DEVICE void mergeHalves(int warp) const {
    constexpr int kHalf = kRows / 2;
    const int row = warp / 2 * kBlock, column = warp % 2 * kBlock;  // of four warps
    if (warp < 4) multiply({part(kHalf, column), part(column, 0), kHalf - column}, at(0, kHalf), row, column, 1);
    ptx::syncthreads();
    if (warp < 4) multiply({part(kHalf, kHalf), part(0, kHalf), row + kBlock}, at(kHalf, 0), row, column, -1);
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
