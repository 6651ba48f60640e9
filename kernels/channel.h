// Additions to FIFOs for channels: credit for streams, and steps that exchange packets with many peers.
#pragma once

#include "kernels/fifo.h"

namespace seqpar {

/// Shared by the threads of a channel.
struct ChannelPositions {
  /// Precomputed addresses and positions for sending to and receiving from a peer.
  struct alignas(32) FifoCursor {
    LamportPacket* out;
    LamportPacket* in;
    std::uint32_t sent;
    std::uint32_t received;
  };
  FifoCursor cursors[kMostPeers];
  FifoState state[kMostPeers];
  /// Per span of packets: the number of warps that have finished it.
  static constexpr int kSpans = 2 * kRingPackets / kCreditPackets;
  std::uint32_t through[kSpans];

  /// Sets cursor i from state i.
  SEQPAR_DEVICE void place(int i) {
    cursors[i].sent = static_cast<std::uint32_t>(state[i].sent);
    cursors[i].received = static_cast<std::uint32_t>(state[i].received);
  }
};

/// Gives credit for packets that a channel receives from one peer in a stream, when every warp reads part of each span.
/// Uses no barrier, so no warp waits for the publishing store, which takes as long as all stores of the channel need to
/// arrive.
template <class Memory, class Group>
class SpanCredit {
 public:
  /// `packets` packets will be read, starting at position `received`; credit up to `credited` was given. Called by all
  /// threads together.
  SEQPAR_DEVICE SpanCredit(const PeerView& view, int peer, int channel, const Group& group, ChannelPositions& shared,
                           const FifoState& state, std::uint32_t packets)
      : view_(view),
        peer_(peer),
        channel_(channel),
        group_(group),
        shared_(shared),
        received_(state.received),
        credited_(state.credited),
        long_(packets >= kCreditPackets) {
    if (!long_) return;
    if (group.thread() == 0) {
      for (std::uint32_t& count : shared.through) count = 0;
    }
    group.sync();
  }

  /// This thread and the other threads of its warp have finished the packets below `end`, counted from the start of the
  /// stream. Returns false if one of them has given up.
  SEQPAR_DEVICE bool through(bool ok, std::uint32_t end) {
    if (!long_) return ok;
    if (!group_.warpAll(ok)) return false;
    if (end - spanEnd_ < kCreditPackets) return true;
    spanEnd_ = end;
    credited_ = received_ + end;
    if (!group_.leads()) return true;
    std::uint32_t* const count = &shared_.through[credited_ / kCreditPackets % ChannelPositions::kSpans];
    const auto last = static_cast<std::uint32_t>(group_.warps() - 1);
    if (Memory::increment(count, last) == last) giveCredit<Memory>(view_, peer_, channel_, credited_);
    return true;
  }

  /// Position that the peer knows, or will know when the last warp has finished.
  SEQPAR_DEVICE std::uint64_t credited() const { return credited_; }

 private:
  const PeerView& view_;
  int peer_;
  int channel_;
  const Group& group_;
  ChannelPositions& shared_;
  std::uint64_t received_, credited_;
  bool long_;
  std::uint32_t spanEnd_ = 0;
};

/// Sends as Sender does, to a ring that has space.
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

/// In a step, a channel sends packets to each peer and receives packets from each, numbered from 0 in every step, at
/// most kMostPackets to a peer. reserve() starts a step; agreeStep(), then endStep(), end it. After a timeout all
/// threads leave and publish nothing more.
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
      at_.state[peer] = alignedToCall(*fifoState(view, peer, channel));
      at_.place(peer);
      tight = tight || isTight(peer);
    }
    tight_ = group.any(tight);
  }

  SEQPAR_DEVICE CursorSender<Memory> sender(int peer) const { return CursorSender<Memory>(at_.cursors[peer]); }
  SEQPAR_DEVICE Receiver<Memory> receiver(int peer) const {
    return Receiver<Memory>(view_, peer, RingPlace{at_.cursors[peer].in, at_.cursors[peer].received});
  }

  /// Waits until each peer's ring has space for packetsTo(peer) packets. Returns false on timeout.
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

  /// Barrier at the end of a step. Returns true if `ok` holds on all threads; false: one gave up, here or elsewhere.
  SEQPAR_DEVICE bool agreeStep(bool ok) const { return !group_.any(!ok); }

  /// One warp calls reset(warp) to reset the packets that several threads read, counts the step and gives credit, while
  /// the other warps continue. `last`: no step follows, only finish().
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
        countReceived<Memory>(view_, peer, channel_, state, packetsFrom(peer));
        state = alignedToCall(state);
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

  /// Called after the last step.
  SEQPAR_DEVICE void finish() {
    if (!group_.inFirstWarp()) return;
    const auto warp = group_.warp();
    SEQPAR_ROLLED
    for (int peer = warp.thread(); peer < view_.size; peer += warp.threads()) {
      *fifoState(view_, peer, channel_) = at_.state[peer];
    }
  }

 private:
  /// Whether a step may have to wait for credit.
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
