// Where pipes lie: through them raw bytes of any pattern travel between peers. A pipe joins two peers on one lane, both
// ways; each end has its own memory for what arrives, and both number it by the peer at the other end and the lane.
// Short strings go in lines whose arrival is in the data (lines.h), long ones in chunks that are announced (chunks.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "channel_layout.h"

namespace seqpar {

struct PipeLayout {
  /// Lines of 16 bytes, of which 12 are data, in blocks of 128: three of them, read crosswise, carry three times 32
  /// units of 16 bytes, so that a warp's accesses are whole at either end.
  static constexpr std::uint32_t kBlockUnits = 96;
  static constexpr std::uint32_t kBlockBytes = kBlockUnits * 16;
  static constexpr std::uint32_t kBlockLines = 128;
  static constexpr std::uint32_t kBlocks = 32;
  /// A receiver owes the room of fewer blocks than this, so that kMostBlocks always fit in the end.
  static constexpr std::uint32_t kOwedBlocks = kBlocks / 4;
  static constexpr std::uint32_t kMostBlocks = kBlocks - kOwedBlocks;
  static constexpr std::size_t kLinesBytes = std::size_t{kBlocks} * kBlockLines * 16;

  /// A lane's chunks go through rings of their own, by turns: each is one warp's business at either end.
  static constexpr std::uint32_t kTracks = 8;
  static constexpr std::uint32_t kSlots = 2;
  static constexpr std::uint32_t kChunk = 16 << 10;
  static constexpr std::size_t kTrackBytes = std::size_t{kSlots} * kChunk;

  /// At each end: what has come in, then the words by which the peer tells how far it is.
  static constexpr std::size_t kWord = 32;  ///< words of different writers share no sector
  static constexpr std::size_t kLines = 0;
  static constexpr std::size_t kChunks = kLines + kLinesBytes;
  static constexpr std::size_t kArrived = kChunks + kTracks * kTrackBytes;  ///< by track: chunks that have come
  static constexpr std::size_t kTaken = kArrived + kTracks * kWord;         ///< by track: chunks the peer has taken
  static constexpr std::size_t kRoom = kTaken + kTracks * kWord;            ///< blocks of lines the peer has taken
  static constexpr std::size_t kEnd = kRoom + 4 * kWord;

  SEQPAR_BOTH static constexpr std::size_t number(int peer, int lane, int lanes) {
    return static_cast<std::size_t>(peer) * static_cast<std::size_t>(lanes) + static_cast<std::size_t>(lane);
  }
  /// In a rank's window: its end of the pipe with `peer`.
  SEQPAR_BOTH static constexpr std::size_t end(int peer, int lane, int lanes) {
    return number(peer, lane, lanes) * kEnd;
  }
  SEQPAR_BOTH static constexpr std::size_t windowBytes(int peers, int lanes) { return end(peers, 0, lanes); }
};

/// A rank's bookkeeping of a pipe, in its own memory, kept from call to call. Zeros at first.
struct alignas(32) PipeState {
  std::uint64_t blocksSent = 0, blocksReceived = 0;
  std::uint64_t blocksGiven = 0;  ///< received, and the peer knows it
  std::uint64_t unused = 0;
  std::uint64_t chunksSent[PipeLayout::kTracks] = {};
  std::uint64_t chunksReceived[PipeLayout::kTracks] = {};

  SEQPAR_BOTH static constexpr std::size_t bytes(int peers, int lanes) {
    return PipeLayout::number(peers, 0, lanes) * sizeof(PipeState);
  }
};

/// A rank's end of a pipe on lane 0; those of the other lanes follow.
struct PipeEnd {
  std::byte* here;   ///< its own end, in its own window
  std::byte* there;  ///< the peer's end
  PipeState* state;

  SEQPAR_BOTH PipeEnd on(int lane) const {
    const auto offset = static_cast<std::size_t>(lane) * PipeLayout::kEnd;
    return {here + offset, there + offset, state + lane};
  }
};

}  // namespace seqpar
