// Merges partial attention (out, lse) of all peers in one kernel. Lamport packets transfer both: the packets of a
// step's results, then their lse, one word each. The outputs of a result with lse -inf are neither sent nor awaited.
// Source of the merge: online softmax, as in Context Parallelism for Scalable Million-Token Inference, arXiv
// 2411.01783.
#pragma once

#include "kernels/exchange/lse_merge_values.h"

namespace seqpar {

/// kMost: the most peers, including this one.
template <seqparDataType_t kType, int kMost, class Memory, class Group>
class LseMergeProgram {
 public:
  SEQPAR_DEVICE LseMergeProgram(const PeerView& view, const MergeTask& task, int channel, const Group& group,
                                MergeShared& shared)
      : view_(view), task_(task), at_(task, view.size, channel), group_(group), shared_(shared) {}

  /// Returns false on timeout.
  SEQPAR_DEVICE bool run() {
    const std::uint32_t most = at_.range(0, 0, at_.perChannel).size();
    if (most == 0) return true;
    SteppedFifos<Memory, Group> steps(view_, at_.channel, group_, shared_.positions);
    SEQPAR_ROLLED
    for (std::uint32_t begin = 0; begin < most; begin += task_.step) {
      if (!step(steps, begin, begin + task_.step >= most)) return false;
    }
    steps.finish();
    return true;
  }

 private:
  static constexpr int kHeld = kMost < 8 ? kMost : 8;  // peers whose packets a thread polls with their lse
  using Range = MergeChannel<true>::Range;

  /// Transfers results [begin, begin + task_.step) of this channel for every receiver.
  SEQPAR_DEVICE bool step(SteppedFifos<Memory, Group>& steps, std::uint32_t begin, bool last) {
    const bool parts = task_.kind == MergeKind::Parts;
    const int self = view_.self;
    const auto items = [&](int receiver) { return at_.range(receiver, begin, task_.step); };
    const Range mine = items(self);
    const auto packetsTo = [&](int peer) {
      return peer == self ? 0 : at_.packetsOf(items(peer)) + (parts ? at_.packetsOf(mine) : 0);
    };
    const auto packetsFrom = [&](int peer) {
      return peer == self ? 0 : at_.packetsOf(mine) + (parts ? at_.packetsOf(items(peer)) : 0);
    };
    if (!steps.reserve(packetsTo)) return false;
    SEQPAR_ROLLED
    for (int i = 1; i < view_.size; ++i) {
      const int peer = (self + i) % view_.size;
      send(steps, peer, items(peer));
    }
    float* const merged = shared_.merged[begin / task_.step % 2];
    bool ok = true;
    forVecs(mine, [&](std::uint32_t item, std::uint32_t lane) {
      ok = ok && mergeVec(steps, mine, item, lane, merged, items);
    });
    if (parts) {
      SEQPAR_ROLLED
      for (int i = 1; i < view_.size; ++i) {
        const int owner = (self + view_.size - i) % view_.size;
        ok = ok && receiveMerged(steps, owner, items(owner), at_.packetsOf(mine));
      }
    }
    if (!steps.agreeStep(ok)) return false;
    // All threads have read the inputs, which may be in the same place.
    SEQPAR_ROLLED
    for (auto i = static_cast<std::uint32_t>(group_.thread()); i < mine.size();
         i += static_cast<std::uint32_t>(group_.threads())) {
      task_.lseMerged[at_.target(self, mine.begin + i)] = merged[i];
    }
    steps.endStep(last, packetsTo, packetsFrom, [&](const auto& warp) {
      SEQPAR_ROLLED
      for (int peer = 0; peer < view_.size; ++peer) {
        if (peer == self) continue;
        const Receiver<Memory> in = steps.receiver(peer);
        resetWords(in, warp, mine.size() * task_.packets, mine.size());
        if (parts) takeLse(in, warp, peer, items(peer), at_.packetsOf(mine));
      }
    });
    return true;
  }

  /// Calls work(item, lane) for this thread's packets; the same threads for the same packets of a range.
  template <class Work>
  SEQPAR_DEVICE void forVecs(const Range& items, const Work& work) const {
    const std::uint32_t vecs = items.size() * task_.packets;
    SEQPAR_ROLLED
    for (auto vec = static_cast<std::uint32_t>(group_.thread()); vec < vecs;
         vec += static_cast<std::uint32_t>(group_.threads())) {
      work(vec / task_.packets, vec % task_.packets);
    }
  }

  SEQPAR_DEVICE void send(const SteppedFifos<Memory, Group>& steps, int peer, const Range& items) const {
    const CursorSender<Memory> to = steps.sender(peer);
    forVecs(items, [&](std::uint32_t item, std::uint32_t lane) {
      const std::size_t from = at_.source(peer, items.begin + item);
      const LamportPacket packet = load(from, lane);
      const float lse = task_.lse[from];
      if (lse != -INFINITY) to.put(item * task_.packets + lane, packet);
      if (lane == 0) to.putWord(4 * items.size() * task_.packets + item, sendable(asBits(lse), kAbsentAsFloat));
    });
  }

  /// Merges one packet of a result of this rank.
  template <class Items>
  SEQPAR_DEVICE bool mergeVec(const SteppedFifos<Memory, Group>& steps, const Range& mine, std::uint32_t item,
                              std::uint32_t lane, float* merged, const Items& items) const {
    const std::uint32_t index = item * task_.packets + lane;
    const std::uint32_t word = 4 * mine.size() * task_.packets + item;
    const std::size_t from = at_.source(view_.self, mine.begin + item);
    LamportPacket packet[kHeld];
    std::uint32_t bits[kMost];
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      bits[m] = asBits(-INFINITY);
      if (m >= view_.size) continue;
      if (m == view_.self) {
        bits[m] = sendable(asBits(task_.lse[from]), kAbsentAsFloat);
        if (m < kHeld) packet[m] = load(from, lane);
      } else {
        const Receiver<Memory> in = steps.receiver(m);
        bits[m] = in.pollWord(word);
        if (m < kHeld) packet[m] = in.poll(index);
      }
    }
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (m >= view_.size || m == view_.self) continue;
      const Receiver<Memory> in = steps.receiver(m);
      if (m < kHeld) {
        if (!awaitResult(in, m, word, index, bits[m], packet[m])) return false;
      } else if (!in.awaitWord(word, bits[m])) {
        return false;
      }
    }
    const auto termOf = [&](int m, LamportPacket& term) {
      if (m < kHeld) {
        term = packet[m < kHeld ? m : 0];
      } else if (m == view_.self) {
        term = load(from, lane);
      } else {
        const Receiver<Memory> in = steps.receiver(m);
        term = in.poll(index);
        return in.take(index, term);
      }
      return true;
    };
    MergedPacket result;
    if (!mergePackets<kType, Memory>(bits, termOf, result)) return false;
    if (lane == 0) merged[item] = result.lse;
    if (task_.kind == MergeKind::Parts) sendMerged(steps, mine, item, lane, result, items);
    store(at_.target(view_.self, mine.begin + item), lane, result.packet);
    return true;
  }

  /// Waits for an lse and, unless it is -inf, for a packet, which it resets.
  SEQPAR_DEVICE bool awaitResult(const Receiver<Memory>& in, int peer, std::uint32_t word, std::uint32_t index,
                                 std::uint32_t& bits, LamportPacket& packet) const {
    Wait<Memory> wait(view_, peer);
    SEQPAR_ROLLED
    while (bits == kAbsent || (asFloat(bits) != -INFINITY && !complete(packet))) {
      if (wait.over()) return false;
      bits = in.pollWord(word);
      packet = in.poll(index);
    }
    if (asFloat(bits) != -INFINITY) in.reset(index);
    return true;
  }

  template <class Items>
  SEQPAR_DEVICE void sendMerged(const SteppedFifos<Memory, Group>& steps, const Range& mine, std::uint32_t item,
                                std::uint32_t lane, const MergedPacket& result, const Items& items) const {
    SEQPAR_ROLLED
    for (int i = 1; i < view_.size; ++i) {
      const int peer = (view_.self + i) % view_.size;
      const CursorSender<Memory> to = steps.sender(peer);
      const std::uint32_t first = at_.packetsOf(items(peer));
      to.put(first + item * task_.packets + lane, result.packet);
      if (lane == 0) {
        to.putWord(4 * (first + mine.size() * task_.packets) + item, sendable(asBits(result.lse), kAbsentAsFloat));
      }
    }
  }

  /// Merged results of another rank's part; their lse stay in the ring until takeLse().
  SEQPAR_DEVICE bool receiveMerged(const SteppedFifos<Memory, Group>& steps, int owner, const Range& items,
                                   std::uint32_t first) const {
    const Receiver<Memory> in = steps.receiver(owner);
    bool ok = true;
    forVecs(items, [&](std::uint32_t item, std::uint32_t lane) {
      const std::uint32_t index = first + item * task_.packets + lane;
      LamportPacket packet = in.poll(index);
      ok = ok && in.take(index, packet);
      if (!ok) return;
      store(at_.target(owner, items.begin + item), lane, packet);
      if (lane > 0) return;
      const std::uint32_t word = 4 * (first + items.size() * task_.packets) + item;
      std::uint32_t bits = in.pollWord(word);
      ok = in.awaitWord(word, bits);
    });
    return ok;
  }

  template <class Warp>
  SEQPAR_DEVICE void takeLse(const Receiver<Memory>& in, const Warp& warp, int owner, const Range& items,
                             std::uint32_t first) const {
    const std::uint32_t begin = first + items.size() * task_.packets;
    SEQPAR_ROLLED
    for (auto i = static_cast<std::uint32_t>(warp.thread()); i < (items.size() + 3) / 4;
         i += static_cast<std::uint32_t>(warp.threads())) {
      const LamportPacket packet = in.poll(begin + i);
      SEQPAR_UNROLL
      for (std::uint32_t j = 0; j < 4; ++j) {
        const std::uint32_t item = 4 * i + j;
        if (item < items.size()) task_.lseMerged[at_.target(owner, items.begin + item)] = asFloat(packet.word[j]);
      }
      in.reset(begin + i);
    }
  }

  SEQPAR_DEVICE LamportPacket load(std::size_t result, std::uint32_t lane) const {
    return MergePackets<kType, Memory>::load(task_, result, lane);
  }
  SEQPAR_DEVICE void store(std::size_t result, std::uint32_t lane, const LamportPacket& packet) const {
    MergePackets<kType, Memory>::store(task_, result, lane, packet);
  }

  const PeerView& view_;
  const MergeTask& task_;
  const MergeChannel<true> at_;
  const Group& group_;
  MergeShared& shared_;
};

}  // namespace seqpar
