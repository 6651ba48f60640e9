// The ends of a lane's channels to and from all peers, for lanes that send and receive in no common steps.
#pragma once

#include "channel.h"

namespace seqpar {

/// Of the channel with each peer, shared by the threads of a lane: lines sent or received, and what is known of the
/// credit for them.
struct PortPositions {
  std::uint64_t lines[kMostPeers], credit[kMostPeers];
};

template <class Memory, class Group>
class OutPort {
 public:
  SEQPAR_LANE OutPort(const PeerView& view, int lane, const Group& group, PortPositions& positions)
      : view_(view), lane_(lane), group_(group), at_(positions) {
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      at_.lines[peer] = channelState(view, peer, lane)->sent;
      at_.credit[peer] = Memory::acquire(Sender<Memory>::creditWord(view, peer, lane));
    }
    group.sync();
  }

  /// Waits until each peer whose bit is set in `to` has room for so many lines. A barrier. False: gave up.
  SEQPAR_LANE bool begin(std::uint32_t to, std::uint32_t lines) {
    bool late = false;
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      if ((to >> peer & 1U) == 0) continue;
      Sender<Memory> out = sender(peer);
      late = late || !out.reserve(lines);
      at_.credit[peer] = out.credit();
    }
    return !group_.any(late);
  }
  SEQPAR_LANE Sender<Memory> sender(int peer) const {
    return Sender<Memory>(view_, peer, lane_, at_.lines[peer], at_.credit[peer]);
  }
  /// All threads have put their lines. A barrier.
  SEQPAR_LANE void end(std::uint32_t to, std::uint32_t lines) {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      if ((to >> peer & 1U) != 0) at_.lines[peer] += lines;
    }
  }

  SEQPAR_LANE void finish() const {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      channelState(view_, peer, lane_)->sent = at_.lines[peer];
    }
  }

 private:
  const PeerView& view_;
  int lane_;
  const Group& group_;
  PortPositions& at_;
};

template <class Memory, class Group>
class InPort {
 public:
  SEQPAR_LANE InPort(const PeerView& view, int lane, const Group& group, PortPositions& positions)
      : view_(view), lane_(lane), group_(group), at_(positions) {
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      at_.lines[peer] = channelState(view, peer, lane)->received;
      at_.credit[peer] = channelState(view, peer, lane)->given;
    }
    group.sync();
  }

  SEQPAR_LANE Receiver<Memory> receiver(int peer) const {
    return Receiver<Memory>(view_, peer, lane_, at_.lines[peer]);
  }
  /// All threads have taken their lines, unless one is late. A barrier. False: one gave up.
  SEQPAR_LANE bool end(bool late, int peer, std::uint32_t lines) {
    if (group_.any(late)) return false;
    if (group_.thread() == 0) {
      at_.lines[peer] += lines;
      if (at_.lines[peer] - at_.credit[peer] >= kCreditLines) {
        giveCredit<Memory>(view_, peer, lane_, at_.lines[peer]);
        at_.credit[peer] = at_.lines[peer];
      }
    }
    group_.sync();
    return true;
  }

  SEQPAR_LANE void finish() const {
    group_.sync();
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      channelState(view_, peer, lane_)->received = at_.lines[peer];
      channelState(view_, peer, lane_)->given = at_.credit[peer];
    }
  }

 private:
  const PeerView& view_;
  int lane_;
  const Group& group_;
  PortPositions& at_;
};

}  // namespace seqpar
