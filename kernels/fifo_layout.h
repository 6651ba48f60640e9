// Where the channels between peers lie in a rank's window and in its bookkeeping. Plain C++ for the host code that
// allocates; what the bytes mean stands in channel.h.
#pragma once

#include <cstddef>
#include <cstdint>

/// On functions of plain C++ that kernels use too.
#ifdef __CUDACC__
#define SEQPAR_BOTH __host__ __device__
#else
#define SEQPAR_BOTH
#endif

namespace seqpar {

/// A ring holds this many 16-byte lines: the rings of 128 lanes hold what NVLink carries in 23 us, several times what a
/// line and its credit take.
constexpr std::uint32_t kRingLines = 4096;
/// The first line of a call, or of a step of one, is a multiple of this, as the caller's parts are: accesses of a warp
/// that are not aligned to the lines of caches go over NVLink in more pieces, which takes a sixth longer.
constexpr std::uint32_t kCallLines = 8;
/// A receiver gives credit when it owes at least this many lines.
constexpr std::uint32_t kCreditLines = kRingLines / 4;
/// A sender who knows of nothing in flight can always send this many: what is owed, and what was left out at the begin
/// of the call, is less than the rest.
constexpr std::uint32_t kSureLines = kRingLines - kCreditLines - kCallLines;

/// One rank's side of the channels to and from (peer, lane), in lines since the window was made.
struct alignas(32) ChannelState {
  std::uint64_t sent = 0;      ///< lines sent to the peer
  std::uint64_t received = 0;  ///< lines received from the peer
  std::uint64_t given = 0;     ///< lines received from the peer that it knows of
  std::uint64_t credit = 0;    ///< lines sent to the peer that it is known to have taken
};

/// Among `size` peers with `lanes` lanes each.
struct ChannelLayout {
  static constexpr std::size_t kRingBytes = std::size_t{kRingLines} * 16;
  /// Credits are written by different peers.
  static constexpr std::size_t kCreditStride = 64;

  SEQPAR_BOTH static constexpr std::size_t number(int lanes, int peer, int lane) {
    return static_cast<std::size_t>(peer) * static_cast<std::size_t>(lanes) + static_cast<std::size_t>(lane);
  }

  /// A window begins with the rings, whose bytes are all 0xff at first; the rest is zeros at first.
  SEQPAR_BOTH static constexpr std::size_t ringsBytes(int size, int lanes) {
    return number(lanes, size, 0) * kRingBytes;
  }
  /// Bytes of a rank's window.
  SEQPAR_BOTH static constexpr std::size_t windowBytes(int size, int lanes) {
    return ringsBytes(size, lanes) + number(lanes, size, 0) * kCreditStride;
  }
  /// Bytes of a rank's PeerView::state: a ChannelState for each peer and lane, zeros at first.
  SEQPAR_BOTH static constexpr std::size_t stateBytes(int size, int lanes) {
    return number(lanes, size, 0) * sizeof(ChannelState);
  }

  /// In the receiver's window: the ring that `sender` writes.
  SEQPAR_BOTH static constexpr std::size_t ringOffset(int lanes, int sender, int lane) {
    return number(lanes, sender, lane) * kRingBytes;
  }
  /// In the sender's window: the 64-bit number of lines that `receiver` has taken of those that were sent to it.
  SEQPAR_BOTH static constexpr std::size_t creditOffset(int size, int lanes, int receiver, int lane) {
    return ringsBytes(size, lanes) + number(lanes, receiver, lane) * kCreditStride;
  }
};

}  // namespace seqpar
