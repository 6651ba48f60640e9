// What lanes need beside channels: credit for streams; steps in which a lane talks to many peers.
#pragma once

#include "channel.h"

namespace seqpar {

/// Shared by the threads of a lane.
struct LanePositions {
  /// What is needed to send to a peer and to receive from it, worked out once.
  struct alignas(32) Port {
    Line* out;
    Line* in;
    std::uint32_t sent;
    std::uint32_t received;
  };
  Port ports[kMostPeers];
  ChannelState state[kMostPeers];
  /// Warps that are through with a span of lines, by the span's number.
  static constexpr int kSpans = 2 * kRingLines / kCreditLines;
  std::uint32_t through[kSpans];
};

/// Gives credit for what a lane takes from one peer in a stream, of which every warp takes some of each part: without a
/// barrier, so that no warp waits for the publishing, which takes as long as all stores of the lane take to arrive.
template <class Memory, class Group>
class SpanCredit {
 public:
  /// `lines` will be taken, from position `received` on, of which `given` has been given back. By all threads,
  /// together.
  SEQPAR_LANE SpanCredit(const PeerView& view, int peer, int lane, const Group& group, LanePositions& shared,
                         const ChannelState& state, std::uint32_t lines)
      : view_(view),
        peer_(peer),
        lane_(lane),
        group_(group),
        shared_(shared),
        received_(state.received),
        given_(state.given),
        long_(lines >= kCreditLines) {
    if (!long_) return;
    if (group.thread() == 0) {
      for (std::uint32_t& count : shared.through) count = 0;
    }
    group.sync();
  }

  /// This thread is through with the lines below `end`, counted from the begin; so are the other threads of its warp.
  /// False: one of these has given up.
  SEQPAR_LANE bool through(bool ok, std::uint32_t end) {
    if (!long_) return ok;
    if (!group_.warpAll(ok)) return false;
    if (end - spanEnd_ < kCreditLines) return true;
    spanEnd_ = end;
    given_ = received_ + end;
    if (!group_.leads()) return true;
    std::uint32_t* const count = &shared_.through[given_ / kCreditLines % LanePositions::kSpans];
    const auto last = static_cast<std::uint32_t>(group_.warps() - 1);
    if (Memory::increment(count, last) == last) giveCredit<Memory>(view_, peer_, lane_, given_);
    return true;
  }

  /// What the peer knows of, or will when the last warp is through.
  SEQPAR_LANE std::uint64_t given() const { return given_; }

 private:
  const PeerView& view_;
  int peer_;
  int lane_;
  const Group& group_;
  LanePositions& shared_;
  std::uint64_t received_, given_;
  bool long_;
  std::uint32_t spanEnd_ = 0;
};

/// Sends as a Sender does, to a ring that has room.
template <class Memory>
class PortSender {
 public:
  SEQPAR_LANE explicit PortSender(const LanePositions::Port& port) : ring_(port.out), base_(port.sent) {}
  SEQPAR_LANE void put(std::uint32_t index, const Line& line) const {
    Memory::store(slotOf(ring_, base_, index), line);
  }
  SEQPAR_LANE void putWord(std::uint32_t index, std::uint32_t word) const {
    Memory::store(&slotOf(ring_, base_, index / 4)->word[index % 4], word);
  }

 private:
  Line* ring_;
  std::uint32_t base_;
};

/// In a step a lane sends some lines to each peer and receives some from each, numbered from 0 anew. A step sends at
/// most kMostLines lines to a peer. Its begin is reserve(), its end is settle() and then advance(); if one gives up all
/// threads leave without another word.
template <class Memory, class Group>
class SteppedLane {
 public:
  static constexpr std::uint32_t kMostLines = kSureLines;

  SEQPAR_LANE SteppedLane(const PeerView& view, int lane, const Group& group, LanePositions& positions)
      : view_(view), lane_(lane), group_(group), at_(positions) {
    bool tight = false;
    SEQPAR_ROLLED
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      at_.ports[peer].out = Sender<Memory>::ring(view, peer, lane);
      at_.ports[peer].in = Receiver<Memory>::ring(view, peer, lane);
      at_.state[peer] = begun(*channelState(view, peer, lane));
      placePort(peer);
      tight = tight || isTight(peer);
    }
    tight_ = group.any(tight);
  }

  SEQPAR_LANE PortSender<Memory> sender(int peer) const { return PortSender<Memory>(at_.ports[peer]); }
  SEQPAR_LANE Receiver<Memory> receiver(int peer) const {
    return Receiver<Memory>(view_, peer, RingPlace{at_.ports[peer].in, at_.ports[peer].received});
  }

  /// Waits until linesTo(peer) lines have room, for all peers. False: gave up.
  template <class LinesTo>
  SEQPAR_LANE bool reserve(const LinesTo& linesTo) {
    if (!tight_) return true;
    bool late = false;
    SEQPAR_ROLLED
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      Sender<Memory> out(view_, peer, lane_, at_.state[peer].sent, at_.state[peer].credit);
      late = late || !out.reserve(linesTo(peer));
      at_.state[peer].credit = out.credit();
    }
    return !group_.any(late);
  }

  /// A barrier: all threads are done with the step. `ok`: and none has given up. False: one had, here or elsewhere.
  SEQPAR_LANE bool settle(bool ok) const { return !group_.any(!ok); }

  /// reset(warp) puts back the lines that many threads had wanted, by the threads of one warp, which then counts the
  /// step and gives credit, while the others go on. `last`: there is no further step, but finish().
  template <class LinesTo, class LinesFrom, class Reset>
  SEQPAR_LANE void advance(bool last, const LinesTo& linesTo, const LinesFrom& linesFrom, const Reset& reset) {
    bool tight = false;
    if (group_.inFirstWarp()) {
      const auto warp = group_.warp();
      reset(warp);
      group_.warpAll(true);
      SEQPAR_ROLLED
      for (int peer = warp.thread(); peer < view_.size; peer += warp.threads()) {
        ChannelState& state = at_.state[peer];
        state.sent += linesTo(peer);
        countTaken<Memory>(view_, peer, lane_, state, linesFrom(peer));
        state = begun(state);
        placePort(peer);
        tight = tight || isTight(peer);
      }
    }
    if (!last) tight_ = group_.any(tight);
  }
  template <class LinesTo, class LinesFrom>
  SEQPAR_LANE void advance(bool last, const LinesTo& linesTo, const LinesFrom& linesFrom) {
    advance(last, linesTo, linesFrom, [](const auto&) {});
  }

  /// After the last step.
  SEQPAR_LANE void finish() {
    if (!group_.inFirstWarp()) return;
    const auto warp = group_.warp();
    SEQPAR_ROLLED
    for (int peer = warp.thread(); peer < view_.size; peer += warp.threads()) {
      *channelState(view_, peer, lane_) = at_.state[peer];
    }
  }

 private:
  /// A step may have to wait for credit.
  SEQPAR_LANE bool isTight(int peer) const {
    return at_.state[peer].sent + kMostLines > at_.state[peer].credit + kRingLines;
  }
  SEQPAR_LANE void placePort(int peer) const {
    at_.ports[peer].sent = static_cast<std::uint32_t>(at_.state[peer].sent);
    at_.ports[peer].received = static_cast<std::uint32_t>(at_.state[peer].received);
  }

  const PeerView& view_;
  int lane_;
  const Group& group_;
  LanePositions& at_;
  bool tight_;
};

}  // namespace seqpar
