// The ends of a CTA's FIFOs to and from all peers, for programs that send and receive independently.
#pragma once

#include "kernels/fifo.h"

namespace seqpar {

/// The cursor of CTA n has the rings of `ways` channels, starting at channel n * ways, and switches to the next one
/// after each piece of a message: one ring is too small for the map of a large matrix.
SEQPAR_BOTH constexpr int cursorWays(int channels) {
  return channels > 1 ? 2 : 1;
}
/// Number of CTAs that `channels` channels provide cursors for.
SEQPAR_BOTH constexpr int mostCursors(int channels) {
  return channels / cursorWays(channels);
}

/// Shared by the threads of a CTA, for the FIFOs with each peer: packets sent or received, the known credit for them,
/// and the FIFO of the next piece.
struct CursorPositions {
  std::uint64_t packets[2][kMostPeers], credit[2][kMostPeers];
  int way[kMostPeers];
};

template <class Memory, class Group>
class OutCursor {
 public:
  SEQPAR_DEVICE OutCursor(const PeerView& view, int number, const Group& group, CursorPositions& positions)
      : view_(view), ways_(cursorWays(view.channels)), first_(number * ways_), group_(group), at_(positions) {
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      at_.way[peer] = 0;
      for (int way = 0; way < ways_; ++way) {
        at_.packets[way][peer] = alignedToCall(*fifoState(view, peer, first_ + way)).sent;
        at_.credit[way][peer] = Memory::acquire(Sender<Memory>::creditWord(view, peer, first_ + way));
      }
    }
    group.sync();
  }

  /// Waits until each peer with a bit set in `to` has space for a piece of `packets` packets. A barrier. Returns false
  /// on timeout.
  SEQPAR_DEVICE bool begin(std::uint32_t to, std::uint32_t packets) {
    bool late = false;
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      if ((to >> peer & 1U) == 0) continue;
      Sender<Memory> out = sender(peer);
      late = late || !out.reserve(packets);
      at_.credit[at_.way[peer]][peer] = out.credit();
    }
    return !group_.any(late);
  }
  SEQPAR_DEVICE Sender<Memory> sender(int peer) const {
    const int way = at_.way[peer];
    return Sender<Memory>(view_, peer, first_ + way, at_.packets[way][peer], at_.credit[way][peer]);
  }
  /// Called after all threads have stored their packets. A barrier.
  SEQPAR_DEVICE void end(std::uint32_t to, std::uint32_t packets) {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      if ((to >> peer & 1U) == 0) continue;
      at_.packets[at_.way[peer]][peer] += packets;
      at_.way[peer] = ways_ - 1 - at_.way[peer];
    }
  }

  SEQPAR_DEVICE void finish() const {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      for (int way = 0; way < ways_; ++way) fifoState(view_, peer, first_ + way)->sent = at_.packets[way][peer];
    }
  }

 private:
  const PeerView& view_;
  int ways_, first_;
  const Group& group_;
  CursorPositions& at_;
};

template <class Memory, class Group>
class InCursor {
 public:
  SEQPAR_DEVICE InCursor(const PeerView& view, int number, const Group& group, CursorPositions& positions)
      : view_(view), ways_(cursorWays(view.channels)), first_(number * ways_), group_(group), at_(positions) {
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      at_.way[peer] = 0;
      for (int way = 0; way < ways_; ++way) {
        at_.packets[way][peer] = alignedToCall(*fifoState(view, peer, first_ + way)).received;
        at_.credit[way][peer] = fifoState(view, peer, first_ + way)->credited;
      }
    }
    group.sync();
  }

  /// For the peer's next piece.
  SEQPAR_DEVICE Receiver<Memory> receiver(int peer) const {
    const int way = at_.way[peer];
    return Receiver<Memory>(view_, peer, first_ + way, at_.packets[way][peer]);
  }
  /// Ends a piece: all threads have read its packets, unless one is late. A barrier. Returns false if a thread timed
  /// out.
  SEQPAR_DEVICE bool end(bool late, int peer, std::uint32_t packets) {
    if (group_.any(late)) return false;
    if (group_.thread() == 0) {
      const int way = at_.way[peer];
      FifoState state{0, at_.packets[way][peer], at_.credit[way][peer], 0};
      countReceived<Memory>(view_, peer, first_ + way, state, packets);
      at_.packets[way][peer] = state.received;
      at_.credit[way][peer] = state.credited;
      at_.way[peer] = ways_ - 1 - way;
    }
    group_.sync();
    return true;
  }

  SEQPAR_DEVICE void finish() const {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      for (int way = 0; way < ways_; ++way) {
        fifoState(view_, peer, first_ + way)->received = at_.packets[way][peer];
        fifoState(view_, peer, first_ + way)->credited = at_.credit[way][peer];
      }
    }
  }

 private:
  const PeerView& view_;
  int ways_, first_;
  const Group& group_;
  CursorPositions& at_;
};

}  // namespace seqpar
