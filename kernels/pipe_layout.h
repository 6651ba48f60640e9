// Where the pipes lie: rings through which raw bytes travel between peers, with a counter at either end. Unlike the
// channels of a scan, whose data carry their own arrival, pipes pass every bit pattern.
#pragma once

#include <cstddef>

#include "channel_layout.h"

namespace seqpar {

struct PipeLayout {
  /// A chunk is announced as one; a ring holds kSlots of them.
  static constexpr std::size_t kChunk = 32 << 10;
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kRing = kChunk * kSlots;
  /// Counters of different pipes never share a line.
  static constexpr std::size_t kCounter = 64;

  /// A pipe leads from one peer to another on one lane; both number it by the peer at the other end and the lane.
  SEQPAR_BOTH static constexpr std::size_t pipes(int peers, int lanes) {
    return static_cast<std::size_t>(peers) * static_cast<std::size_t>(lanes);
  }
  SEQPAR_BOTH static constexpr std::size_t number(int peer, int lane, int lanes) {
    return static_cast<std::size_t>(peer) * static_cast<std::size_t>(lanes) + static_cast<std::size_t>(lane);
  }

  /// In the receiver's window, by sender.
  SEQPAR_BOTH static constexpr std::size_t ring(int peer, int lane, int lanes) {
    return number(peer, lane, lanes) * kRing;
  }
  /// In the receiver's window, by sender: chunks that have arrived.
  SEQPAR_BOTH static constexpr std::size_t arrived(int peer, int lane, int peers, int lanes) {
    return pipes(peers, lanes) * kRing + number(peer, lane, lanes) * kCounter;
  }
  /// In the sender's window, by receiver: chunks that were taken.
  SEQPAR_BOTH static constexpr std::size_t taken(int peer, int lane, int peers, int lanes) {
    return pipes(peers, lanes) * (kRing + kCounter) + number(peer, lane, lanes) * kCounter;
  }
  SEQPAR_BOTH static constexpr std::size_t windowBytes(int peers, int lanes) {
    return pipes(peers, lanes) * (kRing + 2 * kCounter);
  }

  /// This rank's own memory: chunks sent and chunks received, by pipe.
  SEQPAR_BOTH static constexpr std::size_t sent(int peer, int lane, int lanes) {
    return number(peer, lane, lanes) * 16;
  }
  SEQPAR_BOTH static constexpr std::size_t received(int peer, int lane, int lanes) {
    return sent(peer, lane, lanes) + 8;
  }
  SEQPAR_BOTH static constexpr std::size_t stateBytes(int peers, int lanes) { return pipes(peers, lanes) * 16; }
};

}  // namespace seqpar
