// Products of tokens of different tiles, for any channel decays.
#pragma once

#include "kernels/attn/linear/backward/within_tiles.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD>
struct BetweenTiles {
  using Share = Shares<KD, VD>;
  using Memory = GradientsMemory<T, KD, VD>;
  using Gates = ChannelGates<KD>;
  using Part = ChunkPart<KD>;
  using Products = ChunkProducts<T, KD, VD>;
  static constexpr int kTiles8 = Columns<KD>::kTiles8;
  static constexpr int kThreads = Columns<KD>::kThreads;

  using Roundings = uint32_t[kTiles8][2];  ///< pairs in bf16, of this thread's two rows

  /// Computes the decays between tiles from their logarithms.
  SEQPAR_DEVICE static void makeDecays(Memory& memory, int thread) {
    for (int i = thread; i < KD; i += kThreads) {
      float total[kTiles];
      SEQPAR_UNROLL
      for (int t = 0; t < kTiles; ++t) total[t] = memory.totals[t * KD + i];
      float before = 0, after = 0;
      SEQPAR_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        memory.toBegin[t * KD + i] = decayOf(before);
        memory.toEnd[(kTiles - 1 - t) * KD + i] = decayOf(after);
        before += total[t];
        after += total[kTiles - 1 - t];
      }
      memory.decay1[i] = decayOf(total[1]);
      memory.decay2[i] = decayOf(total[2]);
    }
  }

  /// Decays of the warp's tokens relative to other tiles; `far` for tiles 32 tokens away, in the other half.
  struct Factors {
    float begin, end;  ///< from the chunk's start to the token, from the token to the chunk's end
    float near, far;   ///< to or from the end of the earlier tile, of the earlier half
  };

  SEQPAR_DEVICE static Factors factorsOf(const Memory& memory, float sum, int column, const Lane<KD>& me) {
    const float fromTile = decayOf(sum), toTile = decayOf(memory.totals[me.tile * KD + column] - sum);
    Factors factors;
    factors.begin = fromTile * memory.toBegin[me.tile * KD + column];
    factors.end = toTile * memory.toEnd[me.tile * KD + column];
    factors.near = me.tile % 2 == 1 ? fromTile : toTile;
    factors.far = me.tile >= 2 ? fromTile * (me.tile == 3 ? memory.decay2[column] : 1.f)
                               : toTile * (me.tile == 0 ? memory.decay1[column] : 1.f);
    return factors;
  }

  /// Scales the state terms of dq and dk, and computes the scaled operands. `roundings`: corrections of the gates'
  /// terms q dq for the rounding of q in the state's gradient.
  SEQPAR_DEVICE static void scale(const Task& task, Memory& memory, const Gates& gates, const Raw<T, KD>& q,
                                  const Raw<T, KD>& k, Part& dq, Part& dk, Roundings& roundings, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        Factors factors[2];
        const float ofState[2] = {dq[n][r * 2], dq[n][r * 2 + 1]};
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          factors[e] = factorsOf(memory, gates.sum[n][r * 2 + e], Gates::column(me, n) + e, me);
          dq[n][r * 2 + e] = task.scale * times(factors[e].begin, dq[n][r * 2 + e]);
          dk[n][r * 2 + e] = times(factors[e].end, dk[n][r * 2 + e]);
        }
        const uint32_t qs = q.pair(n, r), ks = k.pair(n, r), near = me.tile % 2 == 1 ? qs : ks,
                       far = me.tile >= 2 ? qs : ks;
        const float low = ptx::lowOf<T>(qs) * factors[0].begin * task.scale,
                    high = ptx::highOf<T>(qs) * factors[1].begin * task.scale;
        const uint32_t scaled = ptx::pack<T>(low, high);
        *pairIn<KD>(memory.q, n, r, me) = scaled;
        roundings[n][r] = ptx::pack<Bf16>(times(ptx::lowOf<T>(scaled) - low, ofState[0]),
                                          times(ptx::highOf<T>(scaled) - high, ofState[1]));
        *pairIn<KD>(memory.k, n, r, me) =
            ptx::pack<T>(ptx::lowOf<T>(ks) * factors[0].end, ptx::highOf<T>(ks) * factors[1].end);
        *pairIn<KD>(memory.nearKeys, n, r, me) =
            ptx::pack<T>(ptx::lowOf<T>(near) * factors[0].near, ptx::highOf<T>(near) * factors[1].near);
        *pairIn<KD>(memory.farKeys, n, r, me) =
            ptx::pack<T>(ptx::lowOf<T>(far) * factors[0].far, ptx::highOf<T>(far) * factors[1].far);
      }
    }
  }

  /// Computes A between tiles, on the first six warps, and within tiles, from both halves of the channels. Its
  /// remainder replaces that of dA.
  SEQPAR_DEVICE static void finishA(const Task& task, Memory& memory, const Lane<KD>& me) {
    if (me.warpIndex < kTokenTiles - kTiles) {
      const int row = me.warpIndex >= 3 ? 3 : me.warpIndex >= 1 ? 2 : 1, column = me.warpIndex - row * (row - 1) / 2;
      const T* keys = row / 2 == column / 2 ? memory.nearKeys : memory.farKeys;
      float a[2][4] = {};
      Products::template multiplyTokens<KD>(a, keys, row * 16, keys, column * 16, Share::kKeyStride, me);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          storeA(memory, me.layout().row(row * 16, 2 * r), me.layout().column(column * 16 + n * 8),
                 task.scale * a[n][r * 2], task.scale * a[n][r * 2 + 1]);
        }
      }
    }
    for (int pair = me.thread; pair < kTiles * 128; pair += kThreads) {
      const int tile = pair / 128, row = pair % 128 / 8, column = pair % 8 * 2;
      float low = 0, high = 0;
      SEQPAR_UNROLL
      for (int p = 0; p < Columns<KD>::kParts; ++p) {
        const float* from = memory.diagonals[tile * Columns<KD>::kParts + p] + row * 16 + column;
        low += from[0];
        high += from[1];
      }
      storeA(memory, tile * 16 + row, tile * 16 + column, task.scale * low, task.scale * high);
    }
  }

  /// dq and dk from other tiles. Tile i relates to its neighbor i ^ 1, and to the tiles of the other half, as the upper
  /// or lower halves of a block relate within a tile. Multiplies by the first kMatrices of dA and its remainder.
  template <int kMatrices>
  SEQPAR_DEVICE static void multiply(const Memory& memory, const Gates& gates, Part& dq, Part& dk, const Lane<KD>& me) {
    const bool upperNear = me.tile % 2 == 1, upperFar = me.tile >= 2;
    Fragment near[kMatrices], far[2][kMatrices];
    const int neighbor = me.tile ^ 1, other = upperFar ? 0 : 2;
    SEQPAR_UNROLL
    for (int i = 0; i < kMatrices; ++i) {
      const T* matrix = i == 0 ? memory.dA : memory.rest;
      dAOf(near[i], matrix, neighbor, upperNear, me);
      dAOf(far[0][i], matrix, other, upperFar, me);
      dAOf(far[1][i], matrix, other + 1, upperFar, me);
    }
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      const int column = me.firstColumn + n * 8;
      float nearPart[2][4] = {}, farPart[2][4] = {};
      Fragment right;
      rightOfTransposed(right, memory.nearKeys, Share::kKeyStride, column, neighbor * 16, me.lane);
      SEQPAR_UNROLL
      for (int i = 0; i < kMatrices; ++i) multiplyPair<T>(nearPart[0], nearPart[1], near[i], right);
      SEQPAR_UNROLL
      for (int tile = 0; tile < 2; ++tile) {
        rightOfTransposed(right, memory.farKeys, Share::kKeyStride, column, (other + tile) * 16, me.lane);
        SEQPAR_UNROLL
        for (int i = 0; i < kMatrices; ++i) multiplyPair<T>(farPart[0], farPart[1], far[tile][i], right);
      }
      SEQPAR_UNROLL
      for (int m = 0; m < 2; ++m) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) {
          const Factors factors = factorsOf(memory, gates.sum[n + m][e], Gates::column(me, n + m) + e % 2, me);
          const float nearValue = factors.near * nearPart[m][e], farValue = factors.far * farPart[m][e];
          dq[n + m][e] += (upperNear ? nearValue : 0.f) + (upperFar ? farValue : 0.f);
          dk[n + m][e] += (upperNear ? 0.f : nearValue) + (upperFar ? 0.f : farValue);
        }
      }
    }
  }

  /// Replaces the scaled operands for other tiles by their rounding remainders.
  SEQPAR_DEVICE static void keepRests(Memory& memory, const Gates& gates, const Raw<T, KD>& q, const Raw<T, KD>& k,
                                      const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        Factors factors[2];
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          factors[e] = factorsOf(memory, gates.sum[n][r * 2 + e], Gates::column(me, n) + e, me);
        }
        const uint32_t near = me.tile % 2 == 1 ? q.pair(n, r) : k.pair(n, r),
                       far = me.tile >= 2 ? q.pair(n, r) : k.pair(n, r);
        uint32_t *nearAt = pairIn<KD>(memory.nearKeys, n, r, me), *farAt = pairIn<KD>(memory.farKeys, n, r, me);
        *nearAt = restOf<T>(ptx::lowOf<T>(near) * factors[0].near, ptx::highOf<T>(near) * factors[1].near, *nearAt);
        *farAt = restOf<T>(ptx::lowOf<T>(far) * factors[0].far, ptx::highOf<T>(far) * factors[1].far, *farAt);
      }
    }
  }

  SEQPAR_DEVICE static void storeA(Memory& memory, int t, int s, float low, float high) {
    const uint32_t kept = ptx::pack<T>(low, high);
    *reinterpret_cast<uint32_t*>(memory.a + t * kTokenStride + s) = kept;
    *reinterpret_cast<uint32_t*>(memory.rest + t * kTokenStride + s) = restOf<T>(low, high, kept);
  }
  SEQPAR_DEVICE static void dAOf(Fragment& to, const T* matrix, int other, bool upper, const Lane<KD>& me) {
    if (upper) {
      leftOf(to, matrix, kTokenStride, me.tile * 16, other * 16, me.lane);
    } else {
      leftOfTransposed(to, matrix, kTokenStride, me.tile * 16, other * 16, me.lane);
    }
  }
};

}  // namespace seqpar::attn::backward
