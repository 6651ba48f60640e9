// A lane that talks to many peers in steps: the positions of all its channels, and how they advance.
#pragma once

#include "channel.h"

namespace seqpar {

/// Shared by the threads of a lane.
struct LanePositions {
  std::uint64_t sent[kMostPeers];
  std::uint64_t credit[kMostPeers];
  std::uint64_t received[kMostPeers];
  std::uint64_t given[kMostPeers];
};

/// In a step a lane sends some lines to each peer and receives some from each, numbered from 0 anew. A step sends at
/// most kMostLines lines to a peer. Its begin is reserve(), its end is advance(); both are barriers, and if one gives
/// up all threads leave without another word.
template <class Memory, class Group>
class SteppedLane {
 public:
  static constexpr std::uint32_t kMostLines = kRingLines - kCreditLines;

  SEQPAR_LANE SteppedLane(const PeerView& view, int lane, const Group& group, LanePositions& positions)
      : view_(view), lane_(lane), group_(group), at_(positions) {
    bool tight = false;
    SEQPAR_ROLLED
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      const ChannelState state = *channelState(view, peer, lane);
      at_.sent[peer] = state.sent;
      at_.credit[peer] = state.credit;
      at_.received[peer] = state.received;
      at_.given[peer] = state.given;
      tight = tight || isTight(peer);
    }
    tight_ = group.any(tight);
  }

  SEQPAR_LANE Sender<Memory> sender(int peer) const {
    return Sender<Memory>(view_, peer, lane_, at_.sent[peer], at_.credit[peer]);
  }
  SEQPAR_LANE Receiver<Memory> receiver(int peer) const {
    return Receiver<Memory>(view_, peer, lane_, at_.received[peer]);
  }

  /// Waits until linesTo(peer) lines have room, for all peers. False: gave up.
  template <class LinesTo>
  SEQPAR_LANE bool reserve(const LinesTo& linesTo) {
    if (!tight_) return true;
    bool late = false;
    SEQPAR_ROLLED
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      Sender<Memory> out = sender(peer);
      late = late || !out.reserve(linesTo(peer));
      at_.credit[peer] = out.credit();
    }
    return !group_.any(late);
  }

  /// All threads are done with the step; `ok`: and none has given up. False: one had, here or elsewhere.
  template <class LinesTo, class LinesFrom>
  SEQPAR_LANE bool advance(bool ok, const LinesTo& linesTo, const LinesFrom& linesFrom) {
    if (group_.any(!ok)) return false;
    bool tight = false;
    SEQPAR_ROLLED
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      at_.sent[peer] += linesTo(peer);
      at_.received[peer] += linesFrom(peer);
      tight = tight || isTight(peer);
    }
    tight_ = group_.any(tight);
    // Publishing takes as long as all stores of the lane take to arrive; the other threads go on.
    SEQPAR_ROLLED
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      if (at_.received[peer] - at_.given[peer] < kCreditLines) continue;
      giveCredit<Memory>(view_, peer, lane_, at_.received[peer]);
      at_.given[peer] = at_.received[peer];
    }
    return true;
  }

  /// After the last step.
  SEQPAR_LANE void finish() {
    SEQPAR_ROLLED
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      ChannelState& state = *channelState(view_, peer, lane_);
      state.sent = at_.sent[peer];
      state.received = at_.received[peer];
      state.given = at_.given[peer];
      state.credit = at_.credit[peer];
    }
  }

 private:
  /// A step may have to wait for credit.
  SEQPAR_LANE bool isTight(int peer) const { return at_.sent[peer] + kMostLines > at_.credit[peer] + kRingLines; }

  const PeerView& view_;
  int lane_;
  const Group& group_;
  LanePositions& at_;
  bool tight_;
};

}  // namespace seqpar
