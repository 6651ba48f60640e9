// Where byte FIFOs lie: through them raw bytes of any pattern travel between peers. A byte FIFO joins two peers on one
// channel, both ways; each end has its own memory for what arrives, and both number it by the peer at the other end and
// the channel. Short payloads go in packets whose arrival is in the data (packets.h), long ones in chunks that are
// announced (chunks.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/fifo_layout.h"

namespace seqpar {

struct ByteFifoLayout {
  /// Packets of 16 bytes, of which 12 are data, in blocks of 128: three of them, read crosswise, carry three times 32
  /// vecs of 16 bytes, so that a warp's accesses are whole at either end.
  static constexpr std::uint32_t kBlockVec16s = 96;
  static constexpr std::uint32_t kBlockBytes = kBlockVec16s * 16;
  static constexpr std::uint32_t kBlockPackets = 128;
  static constexpr std::uint32_t kBlocks = 32;
  /// A receiver owes the room of fewer blocks than this, so that kMostBlocks always fit in the end.
  static constexpr std::uint32_t kOwedBlocks = kBlocks / 4;
  static constexpr std::uint32_t kMostBlocks = kBlocks - kOwedBlocks;
  static constexpr std::size_t kPacketsBytes = std::size_t{kBlocks} * kBlockPackets * 16;

  /// A channel's chunks go through rings of their own, by turns: each is one warp's business at either end.
  static constexpr std::uint32_t kWarpFifos = 8;
  static constexpr std::uint32_t kSlots = 2;
  static constexpr std::uint32_t kChunk = 16 << 10;
  static constexpr std::size_t kWarpFifoBytes = std::size_t{kSlots} * kChunk;

  /// At each end: what has come in, then the words by which the peer tells how far it is.
  static constexpr std::size_t kWord = 32;  ///< words of different writers share no sector
  static constexpr std::size_t kPackets = 0;
  static constexpr std::size_t kChunks = kPackets + kPacketsBytes;
  static constexpr std::size_t kArrived =
      kChunks + kWarpFifos * kWarpFifoBytes;                            ///< by warp FIFO: chunks that have come
  static constexpr std::size_t kTaken = kArrived + kWarpFifos * kWord;  ///< by warp FIFO: chunks the peer has taken
  static constexpr std::size_t kRoom = kTaken + kWarpFifos * kWord;     ///< blocks of packets the peer has taken
  static constexpr std::size_t kEnd = kRoom + 4 * kWord;

  SEQPAR_BOTH static constexpr std::size_t number(int peer, int channel, int channels) {
    return static_cast<std::size_t>(peer) * static_cast<std::size_t>(channels) + static_cast<std::size_t>(channel);
  }
  /// In a rank's window: its end of the byte FIFO with `peer`.
  SEQPAR_BOTH static constexpr std::size_t end(int peer, int channel, int channels) {
    return number(peer, channel, channels) * kEnd;
  }
  SEQPAR_BOTH static constexpr std::size_t windowBytes(int peers, int channels) { return end(peers, 0, channels); }
};

/// A rank's bookkeeping of a byte FIFO, in its own memory, kept from call to call. Zeros at first.
struct alignas(32) ByteFifoState {
  std::uint64_t blocksSent = 0, blocksReceived = 0;
  std::uint64_t blocksGiven = 0;  ///< received, and the peer knows it
  std::uint64_t unused = 0;
  std::uint64_t chunksSent[ByteFifoLayout::kWarpFifos] = {};
  std::uint64_t chunksReceived[ByteFifoLayout::kWarpFifos] = {};

  SEQPAR_BOTH static constexpr std::size_t bytes(int peers, int channels) {
    return ByteFifoLayout::number(peers, 0, channels) * sizeof(ByteFifoState);
  }
};

/// A rank's end of a byte FIFO on channel 0; those of the other channels follow.
struct ByteFifoEnd {
  std::byte* here;   ///< its own end, in its own window
  std::byte* there;  ///< the peer's end
  ByteFifoState* state;

  SEQPAR_BOTH ByteFifoEnd on(int channel) const {
    const auto offset = static_cast<std::size_t>(channel) * ByteFifoLayout::kEnd;
    return {here + offset, there + offset, state + channel};
  }
};

}  // namespace seqpar
