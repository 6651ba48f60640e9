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
  /// One thread: starts bulk copies of a chunk's sums, in a panel, to their place in device memory.
  SEQPAR_DEVICE void keep(const Task& task, int chunk, int panel) const {
    const Sums& from = sums[chunk % 2];
    char* const to = kept(task, chunk);
    ptx::cpAsyncBulkStore(to + panel * kTilePanelBytes, from.fixed + panel * kTilePanel, kTilePanelBytes);
    constexpr int kTotals = sizeof(from.totals) / 2;
    ptx::cpAsyncBulkStore(to + sizeof(from.fixed) + panel * kTotals, from.totals + panel * kPanel, kTotals);
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
  /// Inverses of the decays of two channels of a mild chunk by one reciprocal: the unit for exponentials and
  /// reciprocals bounds the loops that use both.
  SEQPAR_DEVICE static void invert(float (&inverses)[2], float low, float high) {
    static_assert(2 * kLeastTotal > -126);  // the product is normal
    const float inverse = ptx::rcpApprox(low * high);
    inverses[0] = inverse * high;
    inverses[1] = inverse * low;
  }
  SEQPAR_DEVICE static uint32_t stepsOf(float sum) {
    return asBits(fmaxf(sum, kLeast) * (-1 / kStep) + kMagic) & 0xffffu;
  }
};

}  // namespace seqpar::attn::backward::sm90
