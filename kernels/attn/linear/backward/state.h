// The state of a head's block in the registers of a CTA, fp32: 16 rows per warp.
#pragma once

#include "kernels/attn/linear/backward/incoming.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD>
struct State {
  using Share = Shares<KD, VD>;
  float x[Share::kStateTiles][4];

  SEQPAR_DEVICE static int row(const Lane<KD>& me) { return me.warpIndex % Share::kRowTiles * 16 + me.g; }
  SEQPAR_DEVICE static int firstColumn(const Lane<KD>& me) {
    return me.warpIndex / Share::kRowTiles * Share::kStateColumns;
  }
  SEQPAR_DEVICE static int column(const Lane<KD>& me, int n) { return me.layout().column(firstColumn(me) + n * 8); }

  /// x = diag(factor) x, for rows g and g + 8.
  SEQPAR_DEVICE void decay(float factor, float factor8) {
    SEQPAR_UNROLL
    for (int n = 0; n < Share::kStateTiles; ++n) {
      x[n][0] = times(factor, x[n][0]);
      x[n][1] = times(factor, x[n][1]);
      x[n][2] = times(factor8, x[n][2]);
      x[n][3] = times(factor8, x[n][3]);
    }
  }

  /// x += keys^T values, for tiles of 64 x KD and 64 x VD.
  SEQPAR_DEVICE void add(const T* keys, const T* values, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int k = 0; k < kChunk; k += 16) {
      Fragment left, right;
      leftOfTransposed(left, keys, Share::kKeyStride, row(me) - me.g, k, me.lane);
      SEQPAR_UNROLL
      for (int n = 0; n < Share::kStateTiles; n += 2) {
        rightOfTransposed(right, values, Share::kValueStride, firstColumn(me) + n * 8, k, me.lane);
        multiplyPair<T>(x[n], x[n + 1], left, right);
      }
    }
  }

  /// Stores it as T, with row stride `stride`.
  SEQPAR_DEVICE void store(T* to, int stride, const Lane<KD>& me) const {
    SEQPAR_UNROLL
    for (int n = 0; n < Share::kStateTiles; ++n) {
      *reinterpret_cast<uint32_t*>(to + row(me) * stride + column(me, n)) = ptx::pack<T>(x[n][0], x[n][1]);
      *reinterpret_cast<uint32_t*>(to + (row(me) + 8) * stride + column(me, n)) = ptx::pack<T>(x[n][2], x[n][3]);
    }
  }

  /// Stores or loads the block at `block` of a state [dk][dv], in fp32.
  SEQPAR_DEVICE void storeFull(float* block, int dv, int keys, int values, const Lane<KD>& me) const {
    SEQPAR_UNROLL
    for (int n = 0; n < Share::kStateTiles; ++n) {
      if (column(me, n) >= values) continue;
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        if (row(me) + r * 8 >= keys) continue;
        float* to = block + int64_t{row(me) + r * 8} * dv + column(me, n);
        ptx::storePair(to, x[n][r * 2], x[n][r * 2 + 1]);
      }
    }
  }

  /// Elements with a factor of 0 are not read.
  SEQPAR_DEVICE void loadFull(const Incoming& from, int dv, int keys, int values, const Lane<KD>& me) {
    backward::clear(x);
    from.each(row(me), keys, [&](const float* block, float factor, float factor8) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int i = row(me) + r * 8;
        const float own = r == 0 ? factor : factor8;
        SEQPAR_UNROLL
        for (int n = 0; n < Share::kStateTiles; ++n) {
          float low = 0, high = 0;
          if (i < keys && column(me, n) < values && own != 0) {
            ptx::loadPair(block + int64_t{i} * dv + column(me, n), low, high);
          }
          x[n][r * 2] += own * low;
          x[n][r * 2 + 1] += own * high;
        }
      }
    });
  }

  /// Sums x * other over the rows; `other` is a tile of T: sums[half of the columns][KD].
  SEQPAR_DEVICE void rowSums(const T* other, int stride, float* sums, const Lane<KD>& me) const {
    float sum[2] = {0, 0};
    SEQPAR_UNROLL
    for (int n = 0; n < Share::kStateTiles; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const auto pair = *reinterpret_cast<const uint32_t*>(other + (row(me) + r * 8) * stride + column(me, n));
        sum[r] += x[n][r * 2] * ptx::lowOf<T>(pair) + x[n][r * 2 + 1] * ptx::highOf<T>(pair);
      }
    }
    storeRowSums(sum, sums, me);
  }
  SEQPAR_DEVICE void rowSums(const State& other, float* sums, const Lane<KD>& me) const {
    float sum[2] = {0, 0};
    SEQPAR_UNROLL
    for (int n = 0; n < Share::kStateTiles; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) sum[e / 2] += x[n][e] * other.x[n][e];
    }
    storeRowSums(sum, sums, me);
  }
  SEQPAR_DEVICE static void storeRowSums(float (&sum)[2], float* sums, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sum[r] += ptx::shflXor(sum[r], 1);
      sum[r] += ptx::shflXor(sum[r], 2);
      if (me.c == 0) sums[me.warpIndex / Share::kRowTiles * KD + row(me) + r * 8] = sum[r];
    }
  }
};

/// A warp's part of a tile of 64 x KD: its 16 tokens, its channels, as left operands of products.
template <class T, int KD>
struct Raw {
  Fragment x[Columns<KD>::kTiles8 / 2];
  SEQPAR_DEVICE void load(const T* tile, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int j = 0; j < Columns<KD>::kTiles8 / 2; ++j) {
      leftOf(x[j], tile, KD + 8, me.tile * kTileRows, me.firstColumn + j * 16, me.lane);
    }
    ptx::syncwarp();  // the warp may now write there
  }
  /// The pair of accumulator tile n in row g (r = 0) or g + 8.
  SEQPAR_DEVICE uint32_t& pair(int n, int r) { return x[n / 2][n % 2 * 2 + r]; }
  SEQPAR_DEVICE uint32_t pair(int n, int r) const { return x[n / 2][n % 2 * 2 + r]; }
};

/// Address, in a tile of T, of accumulator tile n, row g + 8 r, of a warp's part of 64 x D.
template <int D, class T>
SEQPAR_DEVICE uint32_t* pairIn(T* tile, int n, int r, const Lane<D>& me) {
  return reinterpret_cast<uint32_t*>(tile + me.token(r) * (D + 8) + me.column(n));
}

}  // namespace seqpar::attn::backward
