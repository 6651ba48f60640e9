// Shared memory of the kernel for the chunks with strong channel decays (channel_within_sm90.h), and the division of a
// chunk among its warps.
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/channel_chunks_sm90.h"

namespace seqpar::attn::backward::sm90 {

constexpr int kStrip = 16;  ///< tokens of a warp, and channels at once

/// A thread of sixteen warps: a warp has the 16 tokens of a strip, and a panel of 64 channels.
struct StripPlace {
  int warp, panel, lane;  ///< warp: number of the strip
  int g, c, row;          ///< this thread has rows row and row + 8

  SEQPAR_DEVICE StripPlace()
      : warp(ptx::uniform(ptx::thread() / 32 % 4)),
        panel(ptx::uniform(ptx::thread() / warpgroup::kThreads)),
        lane(ptx::thread() % 32),
        g(lane / 4),
        c(lane % 4),
        row(warp * kStrip + g) {}
  /// The lane's 8 elements of a 16 x 16 tile for ldmatrix and stmatrix: rows of `strip`, units `unit` and + 1.
  template <class E>
  SEQPAR_DEVICE E* at(E* tile, int strip, int unit) const {
    return unitAt(tile, ptx::MatrixRows{lane}, strip, unit);
  }
  /// The same for the transpose.
  template <class E>
  SEQPAR_DEVICE E* across(E* tile, int strip, int unit) const {
    return unitAt(tile, ptx::MatrixRowsAcross{lane}, strip, unit);
  }

 private:
  template <class E, class Rows>
  SEQPAR_DEVICE static E* unitAt(E* tile, const Rows& rows, int strip, int unit) {
    const int r = rows.row(strip * kStrip);
    return tile + r * kPanel + ((unit + rows.half()) ^ r % 8) * 8;
  }
};

/// Shared memory.
template <class T>
struct ChannelWithinMemory {
  static constexpr int kPanels = 4, kChannels = kPanels * kPanel, kStages = kPanels;
  static constexpr int kStride = kPanel + 8;  ///< of a row in fp32: accesses to eight rows do not conflict
  alignas(1024) T queries[kPanels * kTilePanel], keys[kPanels * kTilePanel];
  T results[2][kPanels * kTilePanel];                 ///< products with states; then dq and dk
  T scores[kTilePanel];                               ///< dA + dA^T, without its diagonal
  T decayed[kPanels][2][kChunk * kStrip];             ///< x of 16 channels, of levels 16 and 32
  alignas(16) float sums[kPanels][kChunk * kStride];  ///< of log2-decays from a strip's start; then terms
  float diagonal[kChunk];                             ///< of dA
  alignas(8) uint64_t operands, values, states;

  /// A panel of v and of dO, in place of results.
  SEQPAR_DEVICE T* value(int stage) { return results[0] + stage * 2 * kTilePanel; }
  SEQPAR_DEVICE T* dOut(int stage) { return value(stage) + kTilePanel; }
  /// In place of `decayed`: terms of k of the products with states, and sums of terms, of strips.
  SEQPAR_DEVICE float* carry(int strip) { return reinterpret_cast<float*>(decayed) + strip * kChannels; }
  SEQPAR_DEVICE float* totals(int strip) { return carry(kChunk / kStrip + strip); }
  static_assert(2 * kChunk / kStrip * kChannels * sizeof(float) <= kPanels * 2 * kChunk * kStrip * sizeof(T));

  SEQPAR_DEVICE void init() {
    for (uint64_t* barrier : {&operands, &values, &states}) ptx::mbarrierInit(ptx::sharedAddress(barrier), 1);
    ptx::fenceMbarrierInit();
  }
};

}  // namespace seqpar::attn::backward::sm90
