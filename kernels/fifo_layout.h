// Layout of the FIFOs between peers in a rank's window and in its bookkeeping. Plain C++, for the host code that
// allocates; fifo.h defines what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/arch/device.h"

namespace seqpar {

/// Packets of 16 bytes in a ring. The rings of 128 channels hold what NVLink transfers in 23 us, several times the
/// round trip of a packet and its credit.
constexpr std::uint32_t kRingPackets = 4096;
/// The first packet of a call or step is a multiple of this, like the caller's parts: warp accesses that are not
/// aligned to cache lines cross NVLink in more transactions, which takes a sixth longer.
constexpr std::uint32_t kCallPackets = 8;
/// A receiver gives credit when it owes at least this many packets.
constexpr std::uint32_t kCreditPackets = kRingPackets / 4;
/// Capacity that is always available when nothing is in flight: the credit owed and the packets skipped at the start of
/// the call together are less than the rest.
constexpr std::uint32_t kSurePackets = kRingPackets - kCreditPackets - kCallPackets;

/// One rank's side of the FIFOs to and from (peer, channel), in packets since the window was created.
struct alignas(32) FifoState {
  std::uint64_t sent = 0;      ///< packets sent to the peer
  std::uint64_t received = 0;  ///< packets received from the peer
  std::uint64_t credited = 0;  ///< packets received from the peer and credited to it
  std::uint64_t credit = 0;    ///< packets sent to the peer that the peer is known to have read
};

/// Among `size` peers with `channels` channels each.
struct FifoLayout {
  static constexpr std::size_t kRingBytes = std::size_t{kRingPackets} * 16;
  /// Different peers write different credits.
  static constexpr std::size_t kCreditStride = 64;

  SEQPAR_BOTH static constexpr std::size_t number(int channels, int peer, int channel) {
    return static_cast<std::size_t>(peer) * static_cast<std::size_t>(channels) + static_cast<std::size_t>(channel);
  }

  /// A window starts with the rings, initially bytes of 0xff; the rest is initially zero.
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
  /// In the sender's window: 64-bit number of packets sent to `receiver` that `receiver` has read.
  SEQPAR_BOTH static constexpr std::size_t creditOffset(int size, int channels, int receiver, int channel) {
    return ringsBytes(size, channels) + number(channels, receiver, channel) * kCreditStride;
  }
};

}  // namespace seqpar
