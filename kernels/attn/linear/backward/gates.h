// Decays of a chunk, as base-2 logarithms summed over the tokens in fp32. A decay of 0 (-inf) is a large negative
// value, and differences of sums are the decays between tokens.
#pragma once

#include <cmath>

#include "kernels/attn/linear/backward/tiles.h"

namespace seqpar::attn::backward {

SEQPAR_DEVICE float bounded(float naturalLog) {
  return fminf(fmaxf(naturalLog * kLog2e, kLeastLog2), 0.f);  // NaN: kLeastLog2
}

/// Channel gates in the layout of accumulators: a warp has its 16 tokens and its channels. Sums restart in each tile of
/// 16 tokens, which keeps their differences exact.
template <int KD>
struct ChannelGates {
  static constexpr int kTiles8 = Columns<KD>::kTiles8;
  static constexpr int kBytes = kChunk * (KD + 8) * 4;  ///< of a tile of gates in shared memory
  float sum[kTiles8][4];

  SEQPAR_DEVICE static int column(const Lane<KD>& me, int n) { return me.column(n); }

  /// Loads the chunk's gates in their type; missing ones become 0.
  template <class T>
  SEQPAR_DEVICE static void fetch(void* to, const Task& task, const Item<T>& item, int64_t token, int thread) {
    const int size = task.gateType == seqparBfloat16 ? 2 : 4, each = 16 / size, units = KD / each;
    const int rows = item.rowsOf(token);
    const char* from = item.gates + token * task.gates.token * size;
    for (int unit = thread; unit < kChunk * units; unit += Columns<KD>::kThreads) {
      const int row = unit / units, first = unit % units * each;
      const bool valid = row < rows && first < item.keys;
      ptx::cpAsync16(static_cast<char*>(to) + (row * (KD + 8) + first) * size,
                     valid ? from + (row * task.gates.token + first) * size : from, valid);
    }
  }
  template <class T>
  SEQPAR_DEVICE static void prefetch(const Task& task, const Item<T>& item, int64_t token, int thread) {
    const char* from = item.gates + token * task.gates.token * (task.gateType == seqparBfloat16 ? 2 : 4);
    if (task.gateType == seqparBfloat16) {
      prefetchTile<KD>(reinterpret_cast<const uint16_t*>(from), task.gates.token, item.rowsOf(token), thread);
    } else {
      prefetchTile<KD>(reinterpret_cast<const float*>(from), task.gates.token, item.rowsOf(token), thread);
    }
  }

  /// Computes prefix sums over the tile's tokens, as a product with a triangle of ones, and stores the tile's sums in
  /// totals[tile][KD]. TF32 has 11 significant bits, so each value is split into its upper bits and the remainder.
  SEQPAR_DEVICE void addUp(const void* tile, const Task& task, float* totals, const Lane<KD>& me) {
    uint32_t ones[2][4];  // of tokens c + 8 i, c + 8 i + 4
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int token = i * 8 + e / 2 * 4 + me.c, row = me.g + e % 2 * 8;
        ones[i][e] = asBits(token <= row ? 1.f : 0.f);
      }
    }
    const int first = me.tile * kTileRows + me.c;
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      float log[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = (first + i * 4) * (KD + 8) + me.firstColumn + n * 8 + me.g;
        const float natural = task.gateType == seqparBfloat16 ? ptx::lowOf<Bf16>(static_cast<const uint16_t*>(tile)[at])
                                                              : static_cast<const float*>(tile)[at];
        log[i] = bounded(natural);
      }
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) sum[n][e] = 0;
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t high0 = asBits(log[i * 2]) & 0xffffe000u, high1 = asBits(log[i * 2 + 1]) & 0xffffe000u;
        ptx::mmaM16N8K8Tf32(sum[n], ones[i], high0, high1);
        ptx::mmaM16N8K8Tf32(sum[n], ones[i], asBits(log[i * 2] - asFloat(high0)),
                            asBits(log[i * 2 + 1] - asFloat(high1)));
      }
      if (me.g == 7) {
        totals[me.tile * KD + column(me, n)] = sum[n][2];
        totals[me.tile * KD + column(me, n) + 1] = sum[n][3];
      }
    }
  }

  /// Whether the decay of one of this thread's elements is 0, from the differences of the sums.
  SEQPAR_DEVICE bool forgets(int n, int e, const Lane<KD>& me) const {
    const float above = ptx::shfl(sum[n][e], me.lane - 4), last = ptx::shfl(sum[n][e % 2], 28 + me.c);
    const float before = me.g > 0 ? above : e < 2 ? 0.f : last;
    return sum[n][e] - before < kForgottenLog2;
  }
};

/// Token decays: the first warp computes sums over the whole chunk in shared memory.
template <int KD, class T>
SEQPAR_DEVICE void addUpTokens(const Task& task, const Item<T>& item, int64_t token, float* sums, uint8_t* forgets,
                               const Lane<KD>& me) {
  if (me.warpIndex != 0) return;
  const int rows = item.rowsOf(token);
  float own[2];
  SEQPAR_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = me.lane * 2 + i;
    float log = 0;
    if (row < rows && task.gate == Gate::Head) log = *reinterpret_cast<const float*>(item.gates);
    if (row < rows && task.gate == Gate::Token) {
      log = reinterpret_cast<const float*>(item.gates)[(token + row) * task.gates.token];
    }
    own[i] = bounded(log);
    forgets[row] = own[i] < kForgottenLog2 ? 1 : 0;
  }
  float before = own[0] + own[1];
  SEQPAR_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = ptx::shfl(before, me.lane - distance);
    if (me.lane >= distance) before += other;
  }
  sums[me.lane * 2] = before - own[1];
  sums[me.lane * 2 + 1] = before;
}

}  // namespace seqpar::attn::backward
