// What channels need beside FIFOs: credit for streams; steps in which a channel talks to many peers.
#pragma once

#include "kernels/fifo.h"

namespace seqpar {

/// Shared by the threads of a channel.
struct ChannelPositions {
  /// What is needed to send to a peer and to receive from it, worked out once.
  struct alignas(32) FifoCursor {
    LamportPacket* out;
    LamportPacket* in;
    std::uint32_t sent;
    std::uint32_t received;
  };
  FifoCursor cursors[kMostPeers];
  FifoState state[kMostPeers];
  /// Warps that are through with a span of packets, by the span's number.
  static constexpr int kSpans = 2 * kRingPackets / kCreditPackets;
  std::uint32_t through[kSpans];

  /// Cursor i is where state i says.
  SEQPAR_DEVICE void place(int i) {
    cursors[i].sent = static_cast<std::uint32_t>(state[i].sent);
    cursors[i].received = static_cast<std::uint32_t>(state[i].received);
  }
};

/// Gives credit for what a channel takes from one peer in a stream, of which every warp takes some of each part:
/// without a barrier, so that no warp waits for the publishing, which takes as long as all stores of the channel take
/// to arrive.
template <class Memory, class Group>
class SpanCredit {
 public:
  /// `packets` will be taken, from position `received` on, of which `given` has been given back. By all threads,
  /// together.
  SEQPAR_DEVICE SpanCredit(const PeerView& view, int peer, int channel, const Group& group, ChannelPositions& shared,
                           const FifoState& state, std::uint32_t packets)
      : view_(view),
        peer_(peer),
        channel_(channel),
        group_(group),
        shared_(shared),
        received_(state.received),
        given_(state.given),
        long_(packets >= kCreditPackets) {
    if (!long_) return;
    if (group.thread() == 0) {
      for (std::uint32_t& count : shared.through) count = 0;
    }
    group.sync();
  }

  /// This thread is through with the packets below `end`, counted from the begin; so are the other threads of its warp.
  /// False: one of these has given up.
  SEQPAR_DEVICE bool through(bool ok, std::uint32_t end) {
    if (!long_) return ok;
    if (!group_.warpAll(ok)) return false;
    if (end - spanEnd_ < kCreditPackets) return true;
    spanEnd_ = end;
    given_ = received_ + end;
    if (!group_.leads()) return true;
    std::uint32_t* const count = &shared_.through[given_ / kCreditPackets % ChannelPositions::kSpans];
    const auto last = static_cast<std::uint32_t>(group_.warps() - 1);
    if (Memory::increment(count, last) == last) giveCredit<Memory>(view_, peer_, channel_, given_);
    return true;
  }

  /// What the peer knows of, or will when the last warp is through.
  SEQPAR_DEVICE std::uint64_t given() const { return given_; }

 private:
  const PeerView& view_;
  int peer_;
  int channel_;
  const Group& group_;
  ChannelPositions& shared_;
  std::uint64_t received_, given_;
  bool long_;
  std::uint32_t spanEnd_ = 0;
};

/// Sends as a Sender does, to a ring that has room.
template <class Memory>
class CursorSender {
 public:
  SEQPAR_DEVICE explicit CursorSender(const ChannelPositions::FifoCursor& cursor)
      : ring_(cursor.out), base_(cursor.sent) {}
  SEQPAR_DEVICE void put(std::uint32_t index, const LamportPacket& packet) const {
    Memory::store(packetAt(ring_, base_, index), packet);
  }
  SEQPAR_DEVICE void putWord(std::uint32_t index, std::uint32_t word) const {
    Memory::store(&packetAt(ring_, base_, index / 4)->word[index % 4], word);
  }

 private:
  LamportPacket* ring_;
  std::uint32_t base_;
};

/// In a step a channel sends some packets to each peer and receives some from each, numbered from 0 anew. A step sends
/// at most kMostPackets packets to a peer. Its begin is reserve(), its end is agreeStep() and then endStep(); if one
/// times out all threads leave without another word.
template <class Memory, class Group>
class SteppedFifos {
 public:
  static constexpr std::uint32_t kMostPackets = kSurePackets;

  SEQPAR_DEVICE SteppedFifos(const PeerView& view, int channel, const Group& group, ChannelPositions& positions)
      : view_(view), channel_(channel), group_(group), at_(positions) {
    bool tight = false;
    SEQPAR_ROLLED
    for (int peer = group.thread(); peer < view.size; peer += group.threads()) {
      at_.cursors[peer].out = Sender<Memory>::ring(view, peer, channel);
      at_.cursors[peer].in = Receiver<Memory>::ring(view, peer, channel);
      at_.state[peer] = begun(*fifoState(view, peer, channel));
      at_.place(peer);
      tight = tight || isTight(peer);
    }
    tight_ = group.any(tight);
  }

  SEQPAR_DEVICE CursorSender<Memory> sender(int peer) const { return CursorSender<Memory>(at_.cursors[peer]); }
  SEQPAR_DEVICE Receiver<Memory> receiver(int peer) const {
    return Receiver<Memory>(view_, peer, RingPlace{at_.cursors[peer].in, at_.cursors[peer].received});
  }

  /// Waits until packetsTo(peer) packets have room, for all peers. False: timed out.
  template <class PacketsTo>
  SEQPAR_DEVICE bool reserve(const PacketsTo& packetsTo) {
    if (!tight_) return true;
    bool late = false;
    SEQPAR_ROLLED
    for (int peer = group_.thread(); peer < view_.size; peer += group_.threads()) {
      Sender<Memory> out(view_, peer, channel_, at_.state[peer].sent, at_.state[peer].credit);
      late = late || !out.reserve(packetsTo(peer));
      at_.state[peer].credit = out.credit();
    }
    return !group_.any(late);
  }

  /// A barrier: all threads are done with the step. `ok`: and none has given up. False: one had, here or elsewhere.
  SEQPAR_DEVICE bool agreeStep(bool ok) const { return !group_.any(!ok); }

  /// reset(warp) puts back the packets that many threads had wanted, by the threads of one warp, which then counts the
  /// step and gives credit, while the others go on. `last`: there is no further step, but finish().
  template <class PacketsTo, class PacketsFrom, class Reset>
  SEQPAR_DEVICE void endStep(bool last, const PacketsTo& packetsTo, const PacketsFrom& packetsFrom,
                             const Reset& reset) {
    bool tight = false;
    if (group_.inFirstWarp()) {
      const auto warp = group_.warp();
      reset(warp);
      group_.warpAll(true);
      SEQPAR_ROLLED
      for (int peer = warp.thread(); peer < view_.size; peer += warp.threads()) {
        FifoState& state = at_.state[peer];
        state.sent += packetsTo(peer);
        countTaken<Memory>(view_, peer, channel_, state, packetsFrom(peer));
        state = begun(state);
        at_.place(peer);
        tight = tight || isTight(peer);
      }
    }
    if (!last) tight_ = group_.any(tight);
  }
  template <class PacketsTo, class PacketsFrom>
  SEQPAR_DEVICE void endStep(bool last, const PacketsTo& packetsTo, const PacketsFrom& packetsFrom) {
    endStep(last, packetsTo, packetsFrom, [](const auto&) {});
  }

  /// After the last step.
  SEQPAR_DEVICE void finish() {
    if (!group_.inFirstWarp()) return;
    const auto warp = group_.warp();
    SEQPAR_ROLLED
    for (int peer = warp.thread(); peer < view_.size; peer += warp.threads()) {
      *fifoState(view_, peer, channel_) = at_.state[peer];
    }
  }

 private:
  /// A step may have to wait for credit.
  SEQPAR_DEVICE bool isTight(int peer) const {
    return at_.state[peer].sent + kMostPackets > at_.state[peer].credit + kRingPackets;
  }

  const PeerView& view_;
  int channel_;
  const Group& group_;
  ChannelPositions& at_;
  bool tight_;
};

}  // namespace seqpar
