// The ends of a CTA's channels to and from all peers, for programs that send and receive in no common steps.
#pragma once

#include "channel.h"

namespace seqpar {

/// A port of CTA number n has the rings of this many lanes, from lane n * ways on, and goes from one to the next with
/// each piece of a message: a ring has no room for the map of a large matrix.
SEQPAR_BOTH constexpr int portWays(int lanes) {
  return lanes > 1 ? 2 : 1;
}
/// CTAs that so many lanes have ports for.
SEQPAR_BOTH constexpr int mostPorts(int lanes) {
  return lanes / portWays(lanes);
}

/// Of the channels with each peer, shared by the threads of a CTA: lines sent or received, what is known of the credit
/// for them, and which channel the next piece takes.
struct PortPositions {
  std::uint64_t lines[2][kMostPeers], credit[2][kMostPeers];
  int way[kMostPeers];
};

template <class Memory, class Group>
class OutPort {
 public:
  SEQPAR_LANE OutPort(const PeerView& view, int number, const Group& group, PortPositions& positions)
      : view_(view), ways_(portWays(view.lanes)), first_(number * ways_), group_(group), at_(positions) {
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      at_.way[peer] = 0;
      for (int way = 0; way < ways_; ++way) {
        at_.lines[way][peer] = begun(*channelState(view, peer, first_ + way)).sent;
        at_.credit[way][peer] = Memory::acquire(Sender<Memory>::creditWord(view, peer, first_ + way));
      }
    }
    group.sync();
  }

  /// Waits until each peer whose bit is set in `to` has room for a piece of so many lines. A barrier. False: gave up.
  SEQPAR_LANE bool begin(std::uint32_t to, std::uint32_t lines) {
    bool late = false;
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      if ((to >> peer & 1U) == 0) continue;
      Sender<Memory> out = sender(peer);
      late = late || !out.reserve(lines);
      at_.credit[at_.way[peer]][peer] = out.credit();
    }
    return !group_.any(late);
  }
  SEQPAR_LANE Sender<Memory> sender(int peer) const {
    const int way = at_.way[peer];
    return Sender<Memory>(view_, peer, first_ + way, at_.lines[way][peer], at_.credit[way][peer]);
  }
  /// All threads have put their lines. A barrier.
  SEQPAR_LANE void end(std::uint32_t to, std::uint32_t lines) {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      if ((to >> peer & 1U) == 0) continue;
      at_.lines[at_.way[peer]][peer] += lines;
      at_.way[peer] = ways_ - 1 - at_.way[peer];
    }
  }

  SEQPAR_LANE void finish() const {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      for (int way = 0; way < ways_; ++way) channelState(view_, peer, first_ + way)->sent = at_.lines[way][peer];
    }
  }

 private:
  const PeerView& view_;
  int ways_, first_;
  const Group& group_;
  PortPositions& at_;
};

template <class Memory, class Group>
class InPort {
 public:
  SEQPAR_LANE InPort(const PeerView& view, int number, const Group& group, PortPositions& positions)
      : view_(view), ways_(portWays(view.lanes)), first_(number * ways_), group_(group), at_(positions) {
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      at_.way[peer] = 0;
      for (int way = 0; way < ways_; ++way) {
        at_.lines[way][peer] = begun(*channelState(view, peer, first_ + way)).received;
        at_.credit[way][peer] = channelState(view, peer, first_ + way)->given;
      }
    }
    group.sync();
  }

  /// For the peer's next piece.
  SEQPAR_LANE Receiver<Memory> receiver(int peer) const {
    const int way = at_.way[peer];
    return Receiver<Memory>(view_, peer, first_ + way, at_.lines[way][peer]);
  }
  /// All threads have taken the piece's lines, unless one is late. A barrier. False: one gave up.
  SEQPAR_LANE bool end(bool late, int peer, std::uint32_t lines) {
    if (group_.any(late)) return false;
    if (group_.thread() == 0) {
      const int way = at_.way[peer];
      std::uint64_t& taken = at_.lines[way][peer];
      taken += lines;
      if (taken - at_.credit[way][peer] >= kCreditLines) {
        giveCredit<Memory>(view_, peer, first_ + way, taken);
        at_.credit[way][peer] = taken;
      }
      at_.way[peer] = ways_ - 1 - way;
    }
    group_.sync();
    return true;
  }

  SEQPAR_LANE void finish() const {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      for (int way = 0; way < ways_; ++way) {
        channelState(view_, peer, first_ + way)->received = at_.lines[way][peer];
        channelState(view_, peer, first_ + way)->given = at_.credit[way][peer];
      }
    }
  }

 private:
  const PeerView& view_;
  int ways_, first_;
  const Group& group_;
  PortPositions& at_;
};

}  // namespace seqpar
