// Where the FIFOs between peers lie in a rank's window and in its bookkeeping. Plain C++ for the host code that
// allocates; what the bytes mean stands in fifo.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/both.h"

namespace seqpar {

/// A ring holds this many 16-byte packets: the rings of 128 channels hold what NVLink carries in 23 us, several times
/// what a packet and its credit take.
constexpr std::uint32_t kRingPackets = 4096;
/// The first packet of a call, or of a step of one, is a multiple of this, as the caller's parts are: accesses of a
/// warp that are not aligned to the cache lines go over NVLink in more pieces, which takes a sixth longer.
constexpr std::uint32_t kCallPackets = 8;
/// A receiver gives credit when it owes at least this many packets.
constexpr std::uint32_t kCreditPackets = kRingPackets / 4;
/// A sender who knows of nothing in flight can always send this many: what is owed, and what was left out at the begin
/// of the call, is less than the rest.
constexpr std::uint32_t kSurePackets = kRingPackets - kCreditPackets - kCallPackets;

/// One rank's side of the FIFOs to and from (peer, channel), in packets since the window was made.
struct alignas(32) FifoState {
  std::uint64_t sent = 0;      ///< packets sent to the peer
  std::uint64_t received = 0;  ///< packets received from the peer
  std::uint64_t given = 0;     ///< packets received from the peer that it knows of
  std::uint64_t credit = 0;    ///< packets sent to the peer that it is known to have taken
};

/// Among `size` peers with `channels` channels each.
struct FifoLayout {
  static constexpr std::size_t kRingBytes = std::size_t{kRingPackets} * 16;
  /// Credits are written by different peers.
  static constexpr std::size_t kCreditStride = 64;

  SEQPAR_BOTH static constexpr std::size_t number(int channels, int peer, int channel) {
    return static_cast<std::size_t>(peer) * static_cast<std::size_t>(channels) + static_cast<std::size_t>(channel);
  }

  /// A window begins with the rings, whose bytes are all 0xff at first; the rest is zeros at first.
  SEQPAR_BOTH static constexpr std::size_t ringsBytes(int size, int channels) {
    return number(channels, size, 0) * kRingBytes;
  }
  /// Bytes of a rank's window.
  SEQPAR_BOTH static constexpr std::size_t windowBytes(int size, int channels) {
    return ringsBytes(size, channels) + number(channels, size, 0) * kCreditStride;
  }
  /// Bytes of a rank's PeerView::state: a FifoState for each peer and channel, zeros at first.
  SEQPAR_BOTH static constexpr std::size_t stateBytes(int size, int channels) {
    return number(channels, size, 0) * sizeof(FifoState);
  }

  /// In the receiver's window: the ring that `sender` writes.
  SEQPAR_BOTH static constexpr std::size_t ringOffset(int channels, int sender, int channel) {
    return number(channels, sender, channel) * kRingBytes;
  }
  /// In the sender's window: the 64-bit number of packets that `receiver` has taken of those that were sent to it.
  SEQPAR_BOTH static constexpr std::size_t creditOffset(int size, int channels, int receiver, int channel) {
    return ringsBytes(size, channels) + number(channels, receiver, channel) * kCreditStride;
  }
};

}  // namespace seqpar
