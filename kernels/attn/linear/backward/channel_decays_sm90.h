// Decays of channels in a chunk, as producers of the gradients' kernels make them and both halves of the CTA read them:
// sums of their logarithms to base 2 from the chunk's beginning, in fixed point of 16 bits.
#pragma once

#include "kernels/attn/linear/backward/gates_sm90.h"
#include "kernels/attn/linear/backward/roles_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ChannelDecays {
  /// How little of a number may be left at a chunk's end, in powers of 2, for keys to be divided by it in T.
  static constexpr float kLeastTotal = std::is_same_v<T, Bf16> ? -40 : -8;
  /// Sums are multiples of it: good to 2^-11 (fp16: 2^-13) of a decay.
  static constexpr float kStep = std::is_same_v<T, Bf16> ? 0x1p-10f : 0x1p-12f;
  static constexpr float kLeast = -65535 * kStep;
  static_assert(kLeast < kLeastTotal);

  uint16_t fixed[2][kTile];  ///< of two chunks: a tile's layout, but that units are exchanged by unitAt()
  float totals[2][kBlock];

  SEQPAR_WARP static int unitAt(int row, int unit) { return (unit ^ row % 8 ^ row / 8 * 2) % 8; }

  /// The sums of accumulator tiles n and n + 1, as loadTiles() gives a tile's.
  SEQPAR_WARP void load(uint32_t (&words)[4], int chunk, int n, const Half& me) const {
    const int row = me.warpIndex * 16 + me.lane % 16, unit = unitAt(row, me.lane / 16);
    warp::loadMatrices(words, fixed[chunk % 2] + me.panel() * kTilePanel + row * kPanel + (unit ^ n) * 8);
  }
  static constexpr float kMagic = 0x1p23f;  ///< its last digit is 1
  SEQPAR_WARP static float lowOf(uint32_t words) { return sumOf(words & 0xffffu); }
  SEQPAR_WARP static float highOf(uint32_t words) { return sumOf(words >> 16); }
  SEQPAR_WARP static float sumOf(uint32_t steps) {
    return warp::ofBits(warp::bitsOf(kMagic) | steps) * -kStep + kMagic * kStep;
  }
  SEQPAR_WARP static uint32_t stepsOf(float sum) {
    return warp::bitsOf(fmaxf(sum, kLeast) * (-1 / kStep) + kMagic) & 0xffffu;
  }
};

/// A producer's gates: two channels, eight tokens of each half of a chunk; of one half at a time, for a state is in
/// registers too.
template <class T>
struct ChannelLogs {
  using Decays = ChannelDecays<T>;
  static constexpr int kParts = 4, kTokens = kChunk / 2 / kParts, kPairs = 32 / kParts;
  uint32_t raw[kTokens][2];

  /// Tells the L2 cache of a chunk's gates.
  SEQPAR_WARP static void prefetch(const Task& task, const Item<T>& item, int chunk, const Half& me) {
    ChannelSums<Half>::prefetch(task, item, item.first + int64_t{chunk} * kChunk, me.thread);
  }
  SEQPAR_WARP static int channel(const Half& me) {
    return me.firstColumn + (me.warpIndex * kPairs + me.lane % kPairs) * 2;
  }
  SEQPAR_WARP static int token(int half, int part) { return half * (kChunk / 2) + part * kTokens; }

  SEQPAR_WARP void load(const Task& task, const Item<T>& item, int chunk, int half, const Half& me) {
    const int64_t first = item.first + int64_t{chunk} * kChunk + token(half, me.lane / kPairs);
    const int rows = channel(me) < item.keys ? item.rowsOf(first) : 0;
    const bool narrow = task.gateType == seqparBfloat16;
    const int64_t stride = warp::hidden(task.gates.token * (narrow ? 2 : 4));  // no multiples of it in registers
    const char* from = item.gates + first * stride + channel(me) * (narrow ? 2 : 4);
    if (narrow) {
      SEQPAR_UNROLL
      for (int t = 0; t < kTokens; ++t, from += stride) warp::loadConstant(raw[t][0], from, t < rows);
    } else {
      SEQPAR_UNROLL
      for (int t = 0; t < kTokens; ++t, from += stride) warp::loadConstant(raw[t][0], raw[t][1], from, t < rows);
    }
  }

  /// Of a chunk whose first half is loaded. Gives whether its decays are mild.
  SEQPAR_WARP bool addUp(const Task& task, const Item<T>& item, int chunk, Decays& to, const Half& place) {
    const bool narrow = task.gateType == seqparBfloat16;
    float total[2] = {0, 0};
    SEQPAR_ROLL
    for (int half = 0; half < 2; ++half) {
      const Half me = place.again();
      const int part = me.lane / kPairs, column = channel(me) % kPanel;
      uint16_t* panel = to.fixed[chunk % 2] + me.panel() * kTilePanel + column % 8;
      float sums[kTokens][2];
      SEQPAR_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const uint32_t low = narrow ? raw[t][0] << 16 : raw[t][0], high = narrow ? raw[t][0] & 0xffff0000u : raw[t][1];
        sums[t][0] = bounded(warp::ofBits(low)) + (t > 0 ? sums[t - 1][0] : 0.f);
        sums[t][1] = bounded(warp::ofBits(high)) + (t > 0 ? sums[t - 1][1] : 0.f);
      }
      if (half == 0) load(task, item, chunk, 1, me);
      float before[2] = {total[0], total[1]};
      SEQPAR_UNROLL
      for (int i = 0; i < kParts; ++i) {
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float other = warp::shuffle(sums[kTokens - 1][e], i * kPairs + me.lane % kPairs);
          before[e] += i < part ? other : 0.f;
          total[e] += other;
        }
      }
      SEQPAR_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const int row = token(half, part) + t;
        *reinterpret_cast<uint32_t*>(panel + row * kPanel + Decays::unitAt(row, column / 8) * 8) =
            Decays::stepsOf(before[0] + sums[t][0]) | Decays::stepsOf(before[1] + sums[t][1]) << 16;
      }
    }
    if (place.lane < kPairs) warp::storePair(to.totals[chunk % 2] + channel(place), total[0], total[1]);
    return total[0] >= Decays::kLeastTotal && total[1] >= Decays::kLeastTotal;
  }
};

}  // namespace seqpar::attn::backward::sm90
