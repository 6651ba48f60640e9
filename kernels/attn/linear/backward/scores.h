// Products of a chunk: the token matrices A and dA, and products with these and with states.
#pragma once

#include "kernels/attn/linear/backward/memory.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD>
struct ChunkProducts {
  using Share = Shares<KD, VD>;
  using Memory = GradientsMemory<T, KD, VD>;
  using Part = ChunkPart<KD>;
  static constexpr int kTiles8 = Columns<KD>::kTiles8;
  static constexpr int kWarps = warpsOf(KD);

  /// The state terms of dq and dk: S dOut and E v.
  SEQPAR_DEVICE static void multiplyByStates(const Memory& memory, Part& dq, Part& dk, const Lane<KD>& me) {
    clear(dq);
    clear(dk);
    multiplyByState(dq, memory.dOut, memory.before, me);
    multiplyByState(dk, memory.v, memory.after, me);
  }
  /// part += left[tile's tokens] state^T: the state's rows are the right operand's columns.
  SEQPAR_DEVICE static void multiplyByState(Part& part, const T* left, const T* state, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int k = 0; k < VD; k += 16) {
      Fragment a, b;
      leftOf(a, left, Share::kValueStride, me.tile * kTileRows, k, me.lane);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; n += 2) {
        rightOf(b, state, Share::kValueStride, me.firstColumn + n * 8, k, me.lane);
        multiplyPair<T>(part[n], part[n + 1], a, b);
      }
    }
  }

  /// A tile of 16 x 16 of left right^T.
  template <int kTerms>
  SEQPAR_DEVICE static void multiplyTokens(float (&tile)[2][4], const T* left, int m, const T* right, int n, int stride,
                                           const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int k = 0; k < kTerms; k += 16) {
      Fragment a, b;
      leftOf(a, left, stride, m, k, me.lane);
      rightOf(b, right, stride, n, k, me.lane);
      multiplyPair<T>(tile[0], tile[1], a, b);
    }
  }

  /// Row and column of tile `index` of the lower triangle.
  SEQPAR_DEVICE static void lowerTile(int index, int& row, int& column) {
    row = index >= 6 ? 3 : index >= 3 ? 2 : index >= 1 ? 1 : 0;
    column = index - row * (row + 1) / 2;
  }

  /// dA = scale dOut v^T below the diagonal; with token decays, times the decay between the two tokens, and also A.
  /// kRests: also the rounding remainder of dA.
  template <bool kChannel, bool kRests = false>
  SEQPAR_DEVICE static void makeMatrices(float scale, Memory& memory, const Lane<KD>& me) {
    for (int index = me.warpIndex; index < kTokenTiles; index += kWarps) {
      int row, column;
      lowerTile(index, row, column);
      float dA[2][4] = {}, a[2][4] = {};
      multiplyTokens<VD>(dA, memory.dOut, row * 16, memory.v, column * 16, Share::kValueStride, me);
      if constexpr (!kChannel) multiplyTokens<KD>(a, memory.q, row * 16, memory.k, column * 16, Share::kKeyStride, me);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const int t = me.layout().row(row * 16, 2 * r), s = me.layout().column(column * 16 + n * 8);
          float gradient[2], value[2];
          SEQPAR_UNROLL
          for (int e = 0; e < 2; ++e) {
            gradient[e] = scale * dA[n][r * 2 + e];
            if (s + e == t) memory.ownTerms[t] = gradient[e];
            value[e] = scale * a[n][r * 2 + e];
            if constexpr (!kChannel) {
              const float decay = s + e <= t ? decayOf(memory.sums[t] - memory.sums[s + e]) : 0.f;
              value[e] *= decay;
              gradient[e] *= decay;
            }
            if (s + e >= t) gradient[e] = 0;
            if (s + e > t) value[e] = 0;
          }
          const uint32_t kept = ptx::pack<T>(gradient[0], gradient[1]);
          *reinterpret_cast<uint32_t*>(memory.dA + t * kTokenStride + s) = kept;
          if constexpr (kRests) {
            *reinterpret_cast<uint32_t*>(memory.rest + t * kTokenStride + s) =
                restOf<T>(gradient[0], gradient[1], kept);
          }
          if constexpr (!kChannel) {
            *reinterpret_cast<uint32_t*>(memory.a + t * kTokenStride + s) = ptx::pack<T>(value[0], value[1]);
          }
        }
      }
    }
  }

  /// A = q k^T of the scaled tiles, computed by the last warps, because the first ones had dA.
  SEQPAR_DEVICE static void makeScaledA(Memory& memory, const Lane<KD>& me) {
    for (int index = kWarps - 1 - me.warpIndex; index < kTokenTiles; index += kWarps) {
      int row, column;
      lowerTile(index, row, column);
      float a[2][4] = {};
      multiplyTokens<KD>(a, memory.q, row * 16, memory.k, column * 16, Share::kKeyStride, me);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const int t = me.layout().row(row * 16, 2 * r), s = me.layout().column(column * 16 + n * 8);
          *reinterpret_cast<uint32_t*>(memory.a + t * kTokenStride + s) =
              ptx::pack<T>(s <= t ? a[n][r * 2] : 0.f, s + 1 <= t ? a[n][r * 2 + 1] : 0.f);
        }
      }
    }
  }

  /// dq += dA k, dk += dA^T q, of the tiles in shared memory.
  SEQPAR_DEVICE static void multiplyByTokens(const Memory& memory, Part& dq, Part& dk, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      Fragment left, right;
      if (tile <= me.tile) {
        leftOf(left, memory.dA, kTokenStride, me.tile * 16, tile * 16, me.lane);
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; n += 2) {
          rightOfTransposed(right, memory.k, Share::kKeyStride, me.firstColumn + n * 8, tile * 16, me.lane);
          multiplyPair<T>(dq[n], dq[n + 1], left, right);
        }
      }
      if (tile >= me.tile) {
        leftOfTransposed(left, memory.dA, kTokenStride, me.tile * 16, tile * 16, me.lane);
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; n += 2) {
          rightOfTransposed(right, memory.q, Share::kKeyStride, me.firstColumn + n * 8, tile * 16, me.lane);
          multiplyPair<T>(dk[n], dk[n + 1], left, right);
        }
      }
    }
  }
};

}  // namespace seqpar::attn::backward
