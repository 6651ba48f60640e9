// Stores of a chunk's gradients to global memory, and the terms that all kinds of decays share.
#pragma once

#include "kernels/attn/linear/backward/scores.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD, bool kChannel>
struct ChunkOutputs {
  using Share = Shares<KD, VD>;
  using Memory = GradientsMemory<T, KD, VD>;
  using Gates = ChannelGates<KD>;
  using Part = ChunkPart<KD>;
  static constexpr int kTiles8 = Columns<KD>::kTiles8;

  /// Stores a warp's part of 64 x D, `offset` elements after the start of the token's head.
  SEQPAR_DEVICE static void write(const Target& target, const Item<T>& item, int64_t token, int64_t offset, int columns,
                                  const Part& part, const Lane<KD>& me) {
    if (target.data == nullptr) return;
    const int rows = item.rowsOf(token);
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = me.token(r);
      if (row >= rows) continue;
      const int64_t first = item.sequence * target.batch + (token + row) * target.token + item.head * target.head +
                            offset + me.firstColumn + me.c * 2;
      const int left = columns - me.firstColumn - me.c * 2;
      if (target.type == seqparFloat32) {
        float* to = static_cast<float*>(target.data) + first;
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; ++n) {
          if (n * 8 < left) ptx::storeStreaming(to + n * 8, part[n][r * 2], part[n][r * 2 + 1]);
        }
      } else {
        uint16_t* to = static_cast<uint16_t*>(target.data) + first;
        const bool bf16 = std::is_same_v<T, Bf16> || target.type == seqparBfloat16;  // gates have their own type
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; ++n) {
          const float low = part[n][r * 2], high = part[n][r * 2 + 1];
          if (n * 8 < left) {
            ptx::storeStreaming(to + n * 8, bf16 ? ptx::pack<Bf16>(low, high) : ptx::pack<Fp16>(low, high));
          }
        }
      }
    }
  }

  SEQPAR_DEVICE static int64_t keyOffset(const Target& target, const Item<T>& item) {
    return item.valueBlock * target.block + item.keyBlock * kBlock;
  }

  SEQPAR_DEVICE static void writeQueriesAndKeys(const Task& task, const Item<T>& item, int64_t token, const Part& dq,
                                                const Part& dk, const Lane<KD>& me) {
    write(task.dq, item, token, keyOffset(task.dq, item), item.keys, dq, me);
    write(task.dkOut, item, token, keyOffset(task.dkOut, item), item.keys, dk, me);
  }

  /// dv = E^T (k, decayed to the chunk's end) + A^T dOut. kRests: with the rounding remainder of A.
  template <bool kRests = false>
  SEQPAR_DEVICE static void writeValues(const Task& task, const Item<T>& item, int64_t token, const Memory& memory,
                                        const Lane<KD>& me) {
    const int firstColumn = me.firstColumn;
    Part dv;
    clear(dv);
    Fragment left, right;
    SEQPAR_UNROLL
    for (int k = 0; k < KD; k += 16) {
      leftOf(left, memory.k, Share::kKeyStride, me.tile * kTileRows, k, me.lane);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; n += 2) {
        rightOfTransposed(right, memory.after, Share::kValueStride, firstColumn + n * 8, k, me.lane);
        multiplyPair<T>(dv[n], dv[n + 1], left, right);
      }
    }
    if constexpr (!kChannel) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float end = decayOf(memory.sums[kChunk - 1] - memory.sums[me.token(r)]);
        SEQPAR_UNROLL
        for (int n = 0; n < kTiles8; ++n) {
          dv[n][r * 2] = times(end, dv[n][r * 2]);
          dv[n][r * 2 + 1] = times(end, dv[n][r * 2 + 1]);
        }
      }
    }
    for (int tile = me.tile; tile < kTiles; ++tile) {
      Fragment rest;
      leftOfTransposed(left, memory.a, kTokenStride, me.tile * kTileRows, tile * kTileRows, me.lane);
      if (kRests) leftOfTransposed(rest, memory.rest, kTokenStride, me.tile * kTileRows, tile * kTileRows, me.lane);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; n += 2) {
        rightOfTransposed(right, memory.dOut, Share::kValueStride, firstColumn + n * 8, tile * kTileRows, me.lane);
        multiplyPair<T>(dv[n], dv[n + 1], left, right);
        if (kRests) multiplyPair<T>(dv[n], dv[n + 1], rest, right);
      }
    }
    write(task.dvOut, item, token, item.keyBlock * task.dvOut.block + item.valueBlock * kBlock, item.values, dv, me);
  }

  /// The gates' gradients per channel. `sums`, from each token to the tile's end, less the totals of this and earlier
  /// tiles, plus the carry from the chunk's start; or, for a channel that the chunk forgets, `sums` plus the totals of
  /// later tiles, plus the carry from the chunk's end. `gates`: to find decays of 0; NULL: there are none.
  SEQPAR_DEVICE static void writeChannelGates(const Task& task, const Item<T>& item, int64_t token,
                                              const Memory& memory, const Gates* gates, const float* beginCarry,
                                              const float* endCarry, Part& sums, const Lane<KD>& me) {
    if (task.dGates.data == nullptr) return;
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = Gates::column(me, n) + e;
        const bool forgotten = gates != nullptr && memory.chunkDecay[column] == 0;
        const float* carry = forgotten ? endCarry : beginCarry;
        float later = carry[column] + (Share::kSplits > 1 ? carry[KD + column] : 0.f);
        SEQPAR_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          const float total = memory.gateTotals[t * KD + column];
          later += t > me.tile ? (forgotten ? total : 0.f) : (forgotten ? 0.f : -total);
        }
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const bool none = gates != nullptr && gates->forgets(n, r * 2 + e, me);
          sums[n][r * 2 + e] = none ? 0.f : sums[n][r * 2 + e] + later;
        }
      }
    }
    const Target& to = task.dGates;
    write(to, item, token, keyOffset(to, item), item.keys, sums, me);
  }

  /// Sums from rows g and g + 8 to the last row of the tile.
  SEQPAR_DEVICE static void addToTileEnd(float& first, float& second, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int distance = 1; distance < 8; distance *= 2) {
      const float a = ptx::shfl(first, me.lane + distance * 4), b = ptx::shfl(second, me.lane + distance * 4);
      if (me.g + distance < 8) {
        first += a;
        second += b;
      }
    }
    first += ptx::shfl(second, me.c);
  }

  /// Adds the diagonal (s = t) terms.
  SEQPAR_DEVICE static void addOwnTerms(const Memory& memory, const Raw<T, KD>& q, const Raw<T, KD>& k, Part& dq,
                                        Part& dk, const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float own = memory.ownTerms[me.token(r)];
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; ++n) {
        const uint32_t qs = q.pair(n, r), ks = k.pair(n, r);
        dq[n][r * 2] += own * ptx::lowOf<T>(ks);
        dq[n][r * 2 + 1] += own * ptx::highOf<T>(ks);
        dk[n][r * 2] += own * ptx::lowOf<T>(qs);
        dk[n][r * 2 + 1] += own * ptx::highOf<T>(qs);
      }
    }
  }
};

}  // namespace seqpar::attn::backward
