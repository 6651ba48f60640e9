// Merges of partial attention in one step and one hop, of whole packets: the program of lse_merge.h for short messages,
// in the same wire format, since each rank chooses by its own buffers. Loads of bookkeeping and of inputs are in flight
// together, all peers are polled together, and the only barrier is at the end.
#pragma once

#include "kernels/exchange/lse_merge_values.h"

namespace seqpar {

/// kMost: the most peers, including this one.
template <seqparDataType_t kType, int kMost, class Memory, class Group>
class ShortMergeProgram {
 public:
  using Shared = MergeShared;

  /// Reads nothing that earlier kernels write.
  SEQPAR_DEVICE ShortMergeProgram(const PeerView& view, const MergeTask& task, int channel, const Group& group,
                                  MergeShared& shared)
      : view_(view),
        task_(task),
        group_(group),
        shared_(shared),
        channel_(channel),
        item_(static_cast<std::uint32_t>(group.thread()) / task.packets),
        lane_(static_cast<std::uint32_t>(group.thread()) % task.packets),
        items_(static_cast<std::uint32_t>(group.threads()) / task.packets),
        lanes_(static_cast<std::uint32_t>(group.threads()) % task.packets) {}

  /// Returns false on timeout. Requires MergeTask::isShort().
  SEQPAR_DEVICE bool run() {
    const At at(task_, view_.size, channel_);
    if (all(at, 0).size() == 0) return true;
    FifoState state[kMost];
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (isPeer(m)) state[m] = alignedToCall(*fifoState(view_, m, channel_));
    }
    const bool ok = send(at, state) && merge(at, state);
    if (group_.any(!ok)) return false;
    // All threads have read the inputs, which may be in the same place.
    const Range mine = all(at, view_.self);
    SEQPAR_ROLLED
    for (auto i = static_cast<std::uint32_t>(group_.thread()); i < mine.size();
         i += static_cast<std::uint32_t>(group_.threads())) {
      task_.lseMerged[at.target(view_.self, mine.begin + i)] = shared_.merged[0][i];
    }
    if (group_.inFirstWarp()) finish(at, state, mine);
    return true;
  }

 private:
  using At = MergeChannel<false>;
  using Range = At::Range;
  using Packets = MergePackets<kType, Memory>;

  SEQPAR_DEVICE static Range all(const At& at, int receiver) { return at.range(receiver, 0, at.perChannel); }
  SEQPAR_DEVICE bool isPeer(int m) const { return m < view_.size && m != view_.self; }
  SEQPAR_DEVICE Receiver<Memory> receiver(const FifoState& state, int peer) const {
    return Receiver<Memory>(view_, peer, channel_, state.received);
  }

  /// Calls work(item, lane) for this thread's packets of `items` results while it returns true.
  template <class Work>
  SEQPAR_DEVICE bool forPackets(std::uint32_t items, const Work& work) const {
    std::uint32_t item = item_, lane = lane_;
    SEQPAR_ROLLED
    while (item < items) {
      if (!work(item, lane)) return false;
      item += items_;
      lane += lanes_;
      if (lane >= task_.packets) {
        lane -= task_.packets;
        ++item;
      }
    }
    return true;
  }

  /// Waits for space in all peers' rings. Sets the credit in `state`.
  SEQPAR_DEVICE bool reserve(const At& at, FifoState (&state)[kMost]) const {
    bool ok = true;
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (!isPeer(m)) continue;
      Sender<Memory> out(view_, m, channel_, state[m].sent, state[m].credit);
      ok = ok && out.reserve(at.packetsOf(all(at, m)));
      state[m].credit = out.credit();
    }
    return ok;
  }

  /// Sends this rank's results to all peers: loads first, so that they overlap those of `state`.
  SEQPAR_DEVICE bool send(const At& at, FifoState (&state)[kMost]) const {
    if (task_.kind == MergeKind::All) return sendToAll(at, state);
    // No receiver has more than the first.
    return forPackets(all(at, 0).size(), [&](std::uint32_t item, std::uint32_t lane) {
      LamportPacket packet[kMost];
      float lse[kMost];
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        if (!isPeer(m) || item >= all(at, m).size()) continue;
        const std::size_t from = at.source(m, all(at, m).begin + item);
        packet[m] = Packets::loadWhole(task_, from, lane);
        lse[m] = task_.lse[from];
      }
      if (!reserve(at, state)) return false;
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        const std::uint32_t items = all(at, m).size();
        if (isPeer(m) && item < items) put(state[m], m, items, item, lane, packet[m], lse[m]);
      }
      return true;
    });
  }
  SEQPAR_DEVICE bool sendToAll(const At& at, FifoState (&state)[kMost]) const {
    const Range items = all(at, 0);
    return forPackets(items.size(), [&](std::uint32_t item, std::uint32_t lane) {
      const LamportPacket packet = Packets::loadWhole(task_, items.begin + item, lane);
      const float lse = task_.lse[items.begin + item];
      if (!reserve(at, state)) return false;
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        if (isPeer(m)) put(state[m], m, items.size(), item, lane, packet, lse);
      }
      return true;
    });
  }
  SEQPAR_DEVICE void put(const FifoState& state, int peer, std::uint32_t items, std::uint32_t item, std::uint32_t lane,
                         const LamportPacket& packet, float lse) const {
    const Sender<Memory> out(view_, peer, channel_, state.sent, state.credit);
    if (lse != -INFINITY) out.put(item * task_.packets + lane, packet);
    if (lane == 0) out.putWord(4 * items * task_.packets + item, sendable(asBits(lse), kAbsentAsFloat));
  }

  SEQPAR_DEVICE bool merge(const At& at, const FifoState (&state)[kMost]) const {
    const Range mine = all(at, view_.self);
    return forPackets(mine.size(), [&](std::uint32_t item, std::uint32_t lane) {
      const std::size_t from = at.source(view_.self, mine.begin + item);
      const LamportPacket own = Packets::loadWhole(task_, from, lane);
      const std::uint32_t ownBits = sendable(asBits(task_.lse[from]), kAbsentAsFloat);
      LamportPacket packet[kMost];
      std::uint32_t bits[kMost];
      if (!await(state, item * task_.packets + lane, 4 * mine.size() * task_.packets + item, bits, packet))
        return false;
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        if (m == view_.self) packet[m] = own;
        if (m == view_.self) bits[m] = ownBits;
      }
      MergedPacket result;
      mergePackets<kType, Memory>(
          bits,
          [&](int m, LamportPacket& term) {
            term = packet[m];
            return true;
          },
          result);
      if (lane == 0) shared_.merged[0][item] = result.lse;
      Packets::storeWhole(task_, at.target(view_.self, mine.begin + item), lane, result.packet);
      return true;
    });
  }

  /// Waits for a packet and its lse of all peers, and resets the packets. Other bits are -inf.
  SEQPAR_DEVICE bool await(const FifoState (&state)[kMost], std::uint32_t index, std::uint32_t word,
                           std::uint32_t (&bits)[kMost], LamportPacket (&packet)[kMost]) const {
    Wait<Memory> wait(view_, view_.self);
    SEQPAR_ROLLED
    while (true) {
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        bits[m] = asBits(-INFINITY);
        if (!isPeer(m)) continue;
        const Receiver<Memory> in = receiver(state[m], m);
        bits[m] = in.pollWord(word);
        packet[m] = in.poll(index);
      }
      int missing = -1;
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        const bool arrived = bits[m] != kAbsent && (asFloat(bits[m]) == -INFINITY || complete(packet[m]));
        if (isPeer(m) && !arrived) missing = m;
      }
      if (missing < 0) break;
      if (wait.over([&] { return missing; })) return false;
    }
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (isPeer(m) && asFloat(bits[m]) != -INFINITY) receiver(state[m], m).reset(index);
    }
    return true;
  }

  /// Resets the words, gives credit and keeps the positions. By the first warp, after the barrier.
  SEQPAR_DEVICE void finish(const At& at, const FifoState (&state)[kMost], const Range& mine) const {
    const auto warp = group_.warp();
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (isPeer(m)) resetWords(receiver(state[m], m), warp, mine.size() * task_.packets, mine.size());
    }
    group_.warpAll(true);
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (!isPeer(m) || m % warp.threads() != warp.thread()) continue;
      FifoState next = state[m];
      next.sent += at.packetsOf(all(at, m));
      countReceived<Memory>(view_, m, channel_, next, at.packetsOf(mine));
      *fifoState(view_, m, channel_) = next;
    }
  }

  const PeerView& view_;
  const MergeTask& task_;
  const Group& group_;
  MergeShared& shared_;
  int channel_;
  std::uint32_t item_, lane_;    ///< of the thread's first packet
  std::uint32_t items_, lanes_;  ///< to its next packet
};

}  // namespace seqpar
