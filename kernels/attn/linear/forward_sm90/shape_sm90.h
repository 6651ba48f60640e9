// The block of a head's state that a CTA of these kernels computes, and the sizes that follow from it.
#pragma once

#include "kernels/arch/tma.h"

namespace seqpar::attn::forward_sm90 {

using ptx::kRowBytes;
using ptx::kSwizzleColumns;

constexpr int kChunk = 64;          ///< tokens
constexpr int kGroupThreads = 128;  ///< per warpgroup
constexpr int kConsumers = 2;       ///< warpgroups

template <int Channels, int Columns>
struct BlockShape {
  static constexpr int kChannels = Channels;  ///< of k
  static constexpr int kColumns = Columns;    ///< of v
  static constexpr int kKeyTiles = Channels / kSwizzleColumns, kValueTiles = Columns / kSwizzleColumns;
  static constexpr int kMostTiles = kKeyTiles > kValueTiles ? kKeyTiles : kValueTiles;
  static constexpr int kPairs = Channels / 2;   ///< of adjacent channels
  static constexpr int kSteps = Channels / 16;  ///< of wgmma over the channels
  static constexpr int kOctets = Channels / 8;  ///< groups of 8 channels: 4 elements of a consumer thread's state each
  static constexpr int kStateElements = 4 * kOctets;
  using State = float[kStateElements];  ///< of a consumer thread
  using Operand = uint32_t[kSteps][4];  ///< the rounded state as operand A of wgmma
  static_assert(Channels * Columns == kConsumers * kGroupThreads * kStateElements);
  static_assert(kValueTiles == kConsumers, "each consumer has the columns of a tile");
};

/// Memory, stages and loads follow from the shape. Another number of channels also needs other lanes (PrepareLane,
/// QuadLane) and clearRows(), which assert theirs. With 256, pass 3 has no room for two stages of channel decays: heads
/// with more channels are processed in blocks (sweeps_sm90.cuh).
using Shape = BlockShape<128, 128>;

/// One of two short heads with channel decays (pairs.h), in a panel of the tiles.
using ShortShape = BlockShape<kSwizzleColumns, 2 * kSwizzleColumns>;

/// The blocks of a head's channels.
constexpr int keyBlocks(int dk) {
  return (dk + Shape::kChannels - 1) / Shape::kChannels;
}

}  // namespace seqpar::attn::forward_sm90
