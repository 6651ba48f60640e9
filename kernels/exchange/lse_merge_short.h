// Merges of partial attention in one step and one hop, of whole packets: the program of lse_merge.h for short messages,
// in the same wire format, since each rank chooses by its own buffers. Loads of bookkeeping and of inputs are in flight
// together, all peers are polled together, and the only barrier is at the end.
#pragma once

#include "kernels/exchange/lse_merge_values.h"

namespace seqpar {

/// kMost: the most peers, including this one.
template <seqparDataType_t kType, int kMost, class Memory, class Group>
class ShortMergeProgram : MergeProgram<Group> {
 public:
  using MergeProgram<Group>::MergeProgram;

  /// Returns false on timeout. Requires MergeTask::isShort().
  SEQPAR_DEVICE bool run() {
    if (all(0).size() == 0) return true;
    FifoState state[kMost];
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (isPeer(m)) state[m] = alignedToCall(*fifoState(view_, m, at_.channel));
    }
    bool ok = send(state);
    ok = ok && merge(state);
    if (group_.any(!ok)) return false;
    // All threads have read the inputs, which may be in the same place.
    const Range mine = all(view_.self);
    SEQPAR_ROLLED
    for (auto i = static_cast<std::uint32_t>(group_.thread()); i < mine.size();
         i += static_cast<std::uint32_t>(group_.threads())) {
      task_.lseMerged[at_.target(view_.self, mine.begin + i)] = shared_.merged[0][i];
    }
    if (group_.inFirstWarp()) finish(state, mine);
    return true;
  }

 private:
  using Range = MergeChannel::Range;
  using Packets = MergePackets<kType, Memory>;

  SEQPAR_DEVICE Range all(int receiver) const { return at_.range(receiver, 0, at_.perChannel); }
  SEQPAR_DEVICE bool isPeer(int m) const { return m < view_.size && m != view_.self; }
  SEQPAR_DEVICE Receiver<Memory> receiver(const FifoState& state, int peer) const {
    return Receiver<Memory>(view_, peer, at_.channel, state.received);
  }

  /// Sends this rank's results to all peers. Sets the credit in `state`.
  SEQPAR_DEVICE bool send(FifoState (&state)[kMost]) const {
    const Range first = all(0);  // no receiver has more
    const std::uint32_t vecs = first.size() * task_.packets;
    bool ok = true;
    SEQPAR_ROLLED
    for (auto vec = static_cast<std::uint32_t>(group_.thread()); vec < vecs;
         vec += static_cast<std::uint32_t>(group_.threads())) {
      const std::uint32_t item = vec / task_.packets, lane = vec % task_.packets;
      LamportPacket packet[kMost];
      float lse[kMost];
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        if (!isPeer(m) || item >= all(m).size()) continue;
        if (m > 0 && task_.kind == MergeKind::All && isPeer(m - 1)) {
          packet[m] = packet[m > 0 ? m - 1 : 0];
          lse[m] = lse[m > 0 ? m - 1 : 0];
          continue;
        }
        const std::size_t from = at_.source(m, all(m).begin + item);
        packet[m] = Packets::loadWhole(task_, from, lane);
        lse[m] = task_.lse[from];
      }
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        if (!isPeer(m)) continue;
        const Range items = all(m);
        Sender<Memory> out(view_, m, at_.channel, state[m].sent, state[m].credit);
        ok = ok && out.reserve(at_.packetsOf(items));
        state[m].credit = out.credit();
        if (!ok || item >= items.size()) continue;
        if (lse[m] != -INFINITY) out.put(vec, packet[m]);
        if (lane == 0) {
          out.putWord(4 * items.size() * task_.packets + item, sendable(asBits(lse[m]), kAbsentAsFloat));
        }
      }
    }
    return ok;
  }

  SEQPAR_DEVICE bool merge(const FifoState (&state)[kMost]) const {
    const Range mine = all(view_.self);
    const std::uint32_t vecs = mine.size() * task_.packets;
    SEQPAR_ROLLED
    for (auto vec = static_cast<std::uint32_t>(group_.thread()); vec < vecs;
         vec += static_cast<std::uint32_t>(group_.threads())) {
      const std::uint32_t item = vec / task_.packets, lane = vec % task_.packets;
      const std::size_t from = at_.source(view_.self, mine.begin + item);
      LamportPacket packet[kMost];
      std::uint32_t bits[kMost];
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
        bits[m] = asBits(-INFINITY);
        if (m != view_.self) continue;
        packet[m] = Packets::loadWhole(task_, from, lane);
        bits[m] = sendable(asBits(task_.lse[from]), kAbsentAsFloat);
      }
      if (!await(state, vec, 4 * vecs + item, bits, packet)) return false;
      MergedPacket result;
      mergePackets<kType, Memory>(
          bits,
          [&](int m, LamportPacket& term) {
            term = packet[m];
            return true;
          },
          result);
      if (lane == 0) shared_.merged[0][item] = result.lse;
      Packets::storeWhole(task_, at_.target(view_.self, mine.begin + item), lane, result.packet);
    }
    return true;
  }

  /// Waits for a packet and its lse of all peers, and resets the packets.
  SEQPAR_DEVICE bool await(const FifoState (&state)[kMost], std::uint32_t index, std::uint32_t word,
                           std::uint32_t (&bits)[kMost], LamportPacket (&packet)[kMost]) const {
    Wait<Memory> wait(view_, view_.self);
    SEQPAR_ROLLED
    while (true) {
      SEQPAR_UNROLL
      for (int m = 0; m < kMost; ++m) {
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
  SEQPAR_DEVICE void finish(const FifoState (&state)[kMost], const Range& mine) const {
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
      next.sent += at_.packetsOf(all(m));
      countReceived<Memory>(view_, m, at_.channel, next, at_.packetsOf(mine));
      *fifoState(view_, m, at_.channel) = next;
    }
  }

  using Base = MergeProgram<Group>;
  using Base::view_, Base::task_, Base::at_, Base::group_, Base::shared_;
};

}  // namespace seqpar
