// Channel decays in a chunk, computed by the producers of the gradients' kernels and read by both halves of the CTA:
// sums of base-2 logarithms from the chunk's start, in 16-bit fixed point.
#pragma once

#include "kernels/attn/linear/backward/gates_sm90.h"
#include "kernels/attn/linear/backward/roles_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ChannelDecays {
  /// Lower bound of a chunk's total decay, as a power of 2, if keys are divided by the decay in T.
  static constexpr float kLeastTotal = std::is_same_v<T, Bf16> ? -40 : -8;
  /// Unit of the sums: precise to 2^-11 (fp16: 2^-13) of a decay.
  static constexpr float kStep = std::is_same_v<T, Bf16> ? 0x1p-10f : 0x1p-12f;
  static constexpr float kLeast = -65535 * kStep;
  static_assert(kLeast < kLeastTotal);

  struct Sums {
    uint16_t fixed[kTile];  ///< a tile's layout, except that unitAt() swizzles its units
    float totals[kBlock];
  };
  static_assert(sizeof(Sums) == kDecaySumsBytes);
  Sums sums[2];  ///< for two chunks

  SEQPAR_DEVICE static int unitAt(int row, int unit) { return (unit ^ row % 8 ^ row / 16 * 2) % 8; }

  /// Address of the stored sums of a chunk of this CTA's segment.
  SEQPAR_DEVICE static char* kept(const Task& task, int chunk) {
    const int64_t chunks = (task.segmentTokens + kChunk - 1) / kChunk;
    return task.decays + (ptx::block() * chunks + chunk) * kDecaySumsBytes;
  }
  SEQPAR_DEVICE void fetch(const char* from, int chunk, int thread) {
    char* to = reinterpret_cast<char*>(&sums[chunk % 2]);
    SEQPAR_UNROLL
    for (int at = 0; at < kDecaySumsBytes; at += Half::kThreads * 16) {
      const int own = at + thread * 16;
      if (own < kDecaySumsBytes) ptx::cpAsync16(to + own, from + own, true);
    }
  }

  /// The sums of accumulator tiles n and n + 1, in the layout of loadTiles().
  SEQPAR_DEVICE void load(uint32_t (&words)[4], int chunk, int n, const Half& me) const {
    const int row = me.matrixRows().row(me.warpIndex * 16), unit = unitAt(row, me.matrixRows().half());
    ptx::ldmatrixX4(words, sums[chunk % 2].fixed + me.panel() * kTilePanel + row * kPanel + (unit ^ n) * 8);
  }
  static constexpr float kMagic = 0x1p23f;  ///< the weight of its last bit is 1
  SEQPAR_DEVICE static float lowOf(uint32_t words) { return sumOf(words & 0xffffu); }
  SEQPAR_DEVICE static float highOf(uint32_t words) { return sumOf(words >> 16); }
  SEQPAR_DEVICE static float sumOf(uint32_t steps) { return asFloat(asBits(kMagic) | steps) * -kStep + kMagic * kStep; }
  SEQPAR_DEVICE static uint32_t stepsOf(float sum) {
    return asBits(fmaxf(sum, kLeast) * (-1 / kStep) + kMagic) & 0xffffu;
  }
};

/// Gates of a chunk in the sweep, in shared memory, with the type of the input. Each warp loads and adds the gates of
/// its own 16 channels: a thread has two channels over a quarter of the tokens. Rows are swizzled so that quarters use
/// different banks.
template <class T>
struct SweptGates {
  using Decays = ChannelDecays<T>;
  static constexpr int kParts = 4, kTokens = kChunk / kParts, kPairs = 32 / kParts, kChannels = 2 * kPairs;

  SEQPAR_DEVICE static void fetch(char* to, const Task& task, const Item<T>& item, int chunk, const Half& me) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    if (task.gateType == seqparBfloat16) {
      fetchAs<2>(to, task, item, token, me);
    } else {
      fetchAs<4>(to, task, item, token, me);
    }
  }
  /// Returns whether the decays of this thread's channels are mild.
  SEQPAR_DEVICE static bool addUp(const Task& task, const char* gates, typename Decays::Sums& to, const Half& me) {
    return task.gateType == seqparBfloat16 ? addUpAs<2>(gates, to, me) : addUpAs<4>(gates, to, me);
  }

 private:
  SEQPAR_DEVICE static int warpOf(const Half& me) { return me.group * 4 + me.warpIndex; }

  template <int kSize>
  SEQPAR_DEVICE static void fetchAs(char* to, const Task& task, const Item<T>& item, int64_t token, const Half& me) {
    constexpr int kRow = kChannels * kSize, kUnits = kRow / 16, kRows = 32 / kUnits;
    const int row = me.lane / kUnits, unit = me.lane % kUnits, channel = warpOf(me) * kChannels + unit * (16 / kSize);
    const int rows = channel < item.keys ? item.rowsOf(token) : 0;
    const int64_t stride = task.gates.token * kSize;
    const char* from = item.gates + (token + row) * stride + channel * kSize;
    to += warpOf(me) * kChunk * kRow + unit * 16;
    SEQPAR_UNROLL
    for (int i = 0; i < kChunk; i += kRows) {
      ptx::cpAsync16(to + (i + (row ^ i / kTokens)) * kRow, from, row + i < rows);
      from += kRows * stride;
    }
  }

  template <int kSize>
  SEQPAR_DEVICE static bool addUpAs(const char* gates, typename Decays::Sums& to, const Half& me) {
    constexpr int kRow = kChannels * kSize;
    const int part = me.lane / kPairs, channel = warpOf(me) * kChannels + me.lane % kPairs * 2;
    gates += (warpOf(me) * kChunk + part * kTokens) * kRow + me.lane % kPairs * 2 * kSize;
    const char* rows[kParts];
    SEQPAR_UNROLL
    for (int i = 0; i < kParts; ++i) rows[i] = gates + (i ^ part) * kRow;
    float sums[kTokens][2];
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const char* at = rows[t % kParts] + t / kParts * kParts * kRow;
      float low, high;
      if constexpr (kSize == 4) {
        ptx::loadPair(reinterpret_cast<const float*>(at), low, high);
      } else {
        const uint32_t both = *reinterpret_cast<const uint32_t*>(at);
        low = ptx::lowOf<Bf16>(both);
        high = ptx::highOf<Bf16>(both);
      }
      sums[t][0] = bounded(low) + (t > 0 ? sums[t - 1][0] : 0.f);
      sums[t][1] = bounded(high) + (t > 0 ? sums[t - 1][1] : 0.f);
    }
    float before[2] = {0, 0}, total[2] = {0, 0};
    SEQPAR_UNROLL
    for (int i = 0; i < kParts; ++i) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float other = ptx::shfl(sums[kTokens - 1][e], i * kPairs + me.lane % kPairs);
        before[e] += i < part ? other : 0.f;
        total[e] += other;
      }
    }
    uint16_t* panel = to.fixed + me.panel() * kTilePanel + part * kTokens * kPanel + channel % 8;
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      *reinterpret_cast<uint32_t*>(panel + t * kPanel + Decays::unitAt(part * kTokens + t, channel % kPanel / 8) * 8) =
          Decays::stepsOf(before[0] + sums[t][0]) | Decays::stepsOf(before[1] + sums[t][1]) << 16;
    }
    if (part == 0) ptx::storePair(to.totals + channel, total[0], total[1]);
    return total[0] >= Decays::kLeastTotal && total[1] >= Decays::kLeastTotal;
  }
};

}  // namespace seqpar::attn::backward::sm90
