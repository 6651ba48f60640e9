// Memory layout of byte FIFOs, which transfer bytes of any pattern between peers. A byte FIFO connects two peers on one
// channel, in both directions. Each end has receive memory in its own window, indexed by the remote peer and the
// channel. Short payloads use packets that carry their own arrival flag (exchange/ll_packets.h), long payloads use
// announced chunks (exchange/chunks.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/fifo_layout.h"

namespace seqpar {

struct ByteFifoLayout {
  /// A packet has 16 bytes, 12 of them payload. A block of 128 packets carries 96 Vec16, three for each lane of a warp,
  /// so the accesses of a warp are whole at both ends.
  static constexpr std::uint32_t kBlockVec16s = 96;
  static constexpr std::uint32_t kBlockBytes = kBlockVec16s * 16;
  static constexpr std::uint32_t kBlockPackets = 128;
  static constexpr std::uint32_t kBlocks = 32;
  /// A receiver defers credit for fewer blocks than this, so kMostBlocks blocks always fit eventually.
  static constexpr std::uint32_t kOwedBlocks = kBlocks / 4;
  static constexpr std::uint32_t kMostBlocks = kBlocks - kOwedBlocks;
  static constexpr std::size_t kPacketsBytes = std::size_t{kBlocks} * kBlockPackets * 16;

  /// A channel's chunks alternate between rings; one warp at either end owns each ring.
  static constexpr std::uint32_t kWarpFifos = 8;
  static constexpr std::uint32_t kSlots = 2;
  static constexpr std::uint32_t kChunk = 16 << 10;
  static constexpr std::size_t kWarpFifoBytes = std::size_t{kSlots} * kChunk;

  /// Each end: received data, followed by the counters that the peer writes.
  static constexpr std::size_t kWord = 32;  ///< counters of different writers share no sector
  static constexpr std::size_t kPackets = 0;
  static constexpr std::size_t kChunks = kPackets + kPacketsBytes;
  static constexpr std::size_t kArrived = kChunks + kWarpFifos * kWarpFifoBytes;  ///< by warp FIFO: chunks announced
  static constexpr std::size_t kTail = kArrived + kWarpFifos * kWord;  ///< by warp FIFO: chunks that the peer has read
  static constexpr std::size_t kRoom = kTail + kWarpFifos * kWord;     ///< blocks of packets that the peer has read
  static constexpr std::size_t kEnd = kRoom + 4 * kWord;

  SEQPAR_BOTH static constexpr std::size_t number(int peer, int channel, int channels) {
    return static_cast<std::size_t>(peer) * static_cast<std::size_t>(channels) + static_cast<std::size_t>(channel);
  }
  /// Offset, in a rank's window, of its end of the byte FIFO with `peer`.
  SEQPAR_BOTH static constexpr std::size_t end(int peer, int channel, int channels) {
    return number(peer, channel, channels) * kEnd;
  }
  SEQPAR_BOTH static constexpr std::size_t windowBytes(int peers, int channels) { return end(peers, 0, channels); }
};

/// A rank's counters of a byte FIFO, in its own memory, kept between calls. Initially zero.
struct alignas(32) ByteFifoState {
  std::uint64_t blocksSent = 0, blocksReceived = 0;
  std::uint64_t blocksCredited = 0;  ///< received, and reported to the peer
  std::uint64_t unused = 0;
  std::uint64_t chunksSent[ByteFifoLayout::kWarpFifos] = {};
  std::uint64_t chunksReceived[ByteFifoLayout::kWarpFifos] = {};

  SEQPAR_BOTH static constexpr std::size_t bytes(int peers, int channels) {
    return ByteFifoLayout::number(peers, 0, channels) * sizeof(ByteFifoState);
  }
};

/// A rank's end of a byte FIFO on channel 0; the ends of the other channels follow in memory.
struct ByteFifoEnd {
  std::byte* local;   ///< its own end, in its own window
  std::byte* remote;  ///< the peer's end
  ByteFifoState* state;

  SEQPAR_BOTH ByteFifoEnd on(int channel) const {
    const auto offset = static_cast<std::size_t>(channel) * ByteFifoLayout::kEnd;
    return {local + offset, remote + offset, state + channel};
  }
};

}  // namespace seqpar
