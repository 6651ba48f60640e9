// The state of a head's block, 128 x 128, in the registers of two or four warpgroups, fp32: 64 rows each, with all
// columns or half of them. Or the states of two heads, 64 x 64: one in each of two warpgroups.
#pragma once

#include "kernels/attn/linear/backward/incoming.h"
#include "kernels/attn/linear/backward/tiles_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, class P, int kHeads = 1, int kColumns = kBlock>
struct State {
  static constexpr int kElements = kBlock * kColumns / kHeads;
  static constexpr int kTiles8 = kElements / P::kThreads / 4;
  static_assert(kHeads == 1 || P::kThreads == kHeads * warpgroup::kThreads);
  float x[kTiles8][4];

  SEQPAR_DEVICE static int row(const P& me) { return me.group % 2 * kPanel + me.row; }
  SEQPAR_DEVICE static int rowOfHead(const P& me) { return kHeads == 1 ? row(me) : me.row; }
  SEQPAR_DEVICE static int panel(const P& me) { return me.group / 2; }  ///< of the first column
  SEQPAR_DEVICE static int column(const P& me, int n) { return panel(me) * kPanel + n * 8 + me.c * 2; }

  SEQPAR_DEVICE void clear() { backward::clear(x); }

  /// x = diag(factor) x, for rows row() and row() + 8 of tiles kBegin to before kEnd.
  template <int kBegin = 0, int kEnd = kTiles8>
  SEQPAR_DEVICE void decay(float factor, float factor8) {
    SEQPAR_UNROLL
    for (int n = kBegin; n < kEnd; ++n) {
      x[n][0] = times(factor, x[n][0]);
      x[n][1] = times(factor, x[n][1]);
      x[n][2] = times(factor8, x[n][2]);
      x[n][3] = times(factor8, x[n][3]);
    }
  }

  /// For nonzero factors.
  template <int kBegin = 0, int kEnd = kTiles8>
  SEQPAR_DEVICE void scale(float factor, float factor8) {
    SEQPAR_UNROLL
    for (int n = kBegin; n < kEnd; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) x[n][e] *= e < 2 ? factor : factor8;
    }
  }

  /// x += keys^T values, for tiles of 64 tokens; complete after the products' wait.
  SEQPAR_DEVICE void add(const T* keys, const T* values, const P& me) {
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, kChunk / 16>(
        x, Operand{keys + me.group % 2 * kTilePanel, kTilePanelBytes}, kChunk,
        Operand{valuesOf(values, me), kTilePanelBytes}, kChunk, true);
  }

  /// For 16 of the tokens, with this warp's keys transposed in registers (kernels/arch/wgmma.h).
  SEQPAR_DEVICE void add(const uint32_t (&keys)[4], const T* values, int step, const P& me) {
    static_assert(P::kThreads == 2 * warpgroup::kThreads);
    warpgroup::multiplyStep<T, Terms::Rows>(x, keys, Operand{valuesOf(values, me), kTilePanelBytes}, kChunk, step,
                                            true);
  }

  /// Stores it as an operand in shared memory.
  SEQPAR_DEVICE void store(T* matrix, const P& me) const {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      uint32_t words[4];
      packTiles<T>(words, x, n);
      ptx::stmatrixX4(matrixRow(matrix, n, me), words);
    }
  }
  /// The same in two steps: between them, `x` may change.
  using Words = uint32_t[kTiles8 / 2][4];
  SEQPAR_DEVICE void pack(Words& words) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kTiles8 / 2; ++i) packTiles<T>(words[i], x, 2 * i);
  }
  SEQPAR_DEVICE static void store(T* matrix, const Words& words, const P& me) {
    SEQPAR_UNROLL
    for (int i = 0; i < kTiles8 / 2; ++i) ptx::stmatrixX4(matrixRow(matrix, 2 * i, me), words[i]);
  }

  /// Stores the block at `block` of a state [dk][dv], in fp32.
  template <int kBegin = 0, int kEnd = kTiles8>
  SEQPAR_DEVICE void storeFull(float* block, int dv, int keys, int values, const P& me) const {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int i = rowOfHead(me) + r * 8, first = column(me, 0);
      if (i >= keys) continue;
      float* to = block + int64_t{i} * dv + first;
      SEQPAR_UNROLL
      for (int n = kBegin; n < kEnd; ++n) {
        if (first + n * 8 < values) ptx::storePair(to + n * 8, x[n][r * 2], x[n][r * 2 + 1]);
      }
    }
  }

  /// Adds the sum of the terms of `from`, a state [dk][dv].
  template <int kBegin = 0, int kEnd = kTiles8>
  SEQPAR_DEVICE void addFull(const Incoming& from, int dv, int keys, int values, const P& me) {
    const int64_t offset = int64_t{rowOfHead(me)} * dv + column(me, 0);
    from.each(rowOfHead(me), keys, [&](const float* block, float factor, float factor8) {
      addRows<kBegin, kEnd>(block + offset, factor, factor8, dv, keys, values, me);
    });
  }

  /// Sums x * other over the rows; `other` is an operand in shared memory; each lane has a part.
  template <int kBegin = 0, int kEnd = kTiles8>
  SEQPAR_DEVICE void rowSums(float (&sum)[2], const T* other, const P& me) const {
    sum[0] = sum[1] = 0;
    SEQPAR_UNROLL
    for (int n = kBegin; n < kEnd; n += 2) {
      uint32_t words[4];
      ptx::ldmatrixX4(words, matrixRow(other, n, me));
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* own = x[n + i / 2] + i % 2 * 2;
        sum[i % 2] += own[0] * ptx::lowOf<T>(words[i]);
        sum[i % 2] += own[1] * ptx::highOf<T>(words[i]);
      }
    }
  }

 private:
  /// The warpgroup's columns of a tile of values.
  SEQPAR_DEVICE static const T* valuesOf(const T* values, const P& me) {
    return values + (kHeads == 1 ? panel(me) : me.group) * kTilePanel;
  }
  /// This lane's row, in an operand, of the matrices of accumulator tiles n and n + 1.
  template <class Operands>
  SEQPAR_DEVICE static Operands* matrixRow(Operands* matrix, int n, const P& me) {
    return unitOf<kBlock>(matrix, me.matrixRows().row(row(me) - me.g), panel(me) * 8 + n + me.matrixRows().half());
  }
  /// x += diag(factor) from; `from` is this thread's first element. Elements with a factor of 0 are not read.
  template <int kBegin, int kEnd>
  SEQPAR_DEVICE void addRows(const float* from, float factor, float factor8, int dv, int keys, int values,
                             const P& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float own = r == 0 ? factor : factor8;
      const int left = rowOfHead(me) + r * 8 < keys && own != 0 ? values - column(me, 0) : 0;
      const float* rowAt = from + r * 8 * dv;
      SEQPAR_UNROLL
      for (int n = kBegin; n < kEnd; ++n) {
        float low = 0, high = 0;
        if (n * 8 < left) ptx::loadPair(rowAt + n * 8, low, high);
        x[n][r * 2] += own * low;
        x[n][r * 2 + 1] += own * high;
      }
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
