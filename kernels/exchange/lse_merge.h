// Merges partial attention (out, lse) of all peers in one kernel. Lamport packets transfer both: the packets of a
// step's results, then their lse, one word each. The outputs of a result with lse -inf are neither sent nor awaited.
// Source of the merge: online softmax, as in Context Parallelism for Scalable Million-Token Inference, arXiv
// 2411.01783.
#pragma once

#include <cmath>

#include "kernels/arch/numbers.h"
#include "kernels/channel.h"
#include "kernels/exchange/lse_merge_task.h"

namespace seqpar {

/// Shared by the threads of a channel.
struct MergeShared {
  ChannelPositions positions;
  float merged[2][MergeTask::kMostItems];  ///< by parity of the step: written to memory after the step's barrier
};

/// The numbers of one packet.
template <seqparDataType_t kType>
struct MergeValues {
  static constexpr int kCount = kType == seqparFloat32 ? 4 : 8;
  float at[kCount] = {};

  SEQPAR_DEVICE void add(float weight, const LamportPacket& packet) {
    SEQPAR_UNROLL
    for (int i = 0; i < kCount; ++i) at[i] += weight * value(packet, i);
  }
  SEQPAR_DEVICE LamportPacket pack() const {
    LamportPacket packet;
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (kType == seqparFloat32) {
        packet.word[i] = asBits(at[i]);
      } else {
        packet.word[i] = kType == seqparFloat16 ? floatsToHalves(at[2 * i], at[2 * i + 1])
                                                : floatsToBfloats(at[2 * i], at[2 * i + 1]);
      }
    }
    return packet;
  }

 private:
  SEQPAR_DEVICE static float value(const LamportPacket& packet, int i) {
    if constexpr (kType == seqparFloat32) {
      return asFloat(packet.word[i]);
    } else {
      const std::uint32_t bits = packet.word[i / 2] >> (16 * (i % 2)) & 0xffffU;
      return kType == seqparFloat16 ? halfToFloat(bits) : bfloatToFloat(bits);
    }
  }
};

/// kMost: the most peers, including this one.
template <seqparDataType_t kType, int kMost, class Memory, class Group>
class LseMergeProgram {
 public:
  SEQPAR_DEVICE LseMergeProgram(const PeerView& view, const MergeTask& task, int channel, const Group& group,
                                MergeShared& shared)
      : view_(view), task_(task), group_(group), shared_(shared), channel_(channel) {}

  /// Returns false on timeout.
  SEQPAR_DEVICE bool run() {
    count_ = task_.rows;
    if (task_.rowCount != nullptr) {
      const std::int32_t given = *task_.rowCount;
      const std::uint32_t used = given < 0 ? 0 : static_cast<std::uint32_t>(given);
      count_ = used < task_.rows ? used : task_.rows;
    }
    // No receiver has more results than the first.
    const auto channels = static_cast<std::uint32_t>(task_.channels);
    perChannel_ = (task_.results(count_, view_.size, 0) + channels - 1) / channels;
    const std::uint32_t most = range(0, 0, perChannel_).size();
    if (most == 0) return true;
    SteppedFifos<Memory, Group> steps(view_, channel_, group_, shared_.positions);
    SEQPAR_ROLLED
    for (std::uint32_t begin = 0; begin < most; begin += task_.step) {
      if (!step(steps, begin, begin + task_.step >= most)) return false;
    }
    steps.finish();
    return true;
  }

 private:
  static constexpr int kHeld = kMost < 8 ? kMost : 8;  // peers whose packets a thread polls with their lse
  using Values = MergeValues<kType>;

  struct Range {
    std::uint32_t begin, end;
    SEQPAR_DEVICE std::uint32_t size() const { return end - begin; }
  };

  /// Results [first, first + count) of this channel for a receiver.
  SEQPAR_DEVICE Range range(int receiver, std::uint32_t first, std::uint32_t count) const {
    const std::uint32_t all = task_.results(count_, view_.size, receiver);
    const std::uint32_t base = static_cast<std::uint32_t>(channel_) * perChannel_;
    const std::uint32_t end = first + count < perChannel_ ? first + count : perChannel_;
    return {least(base + first, all), least(base + end, all)};
  }
  SEQPAR_DEVICE static std::uint32_t least(std::uint32_t a, std::uint32_t b) { return a < b ? a : b; }
  SEQPAR_DEVICE std::uint32_t packetsOf(const Range& items) const {
    return items.size() * task_.packets + (items.size() + 3) / 4;
  }

  /// Index of a receiver's result in `out` and `lse`.
  SEQPAR_DEVICE std::size_t source(int receiver, std::uint32_t result) const {
    if (task_.kind == MergeKind::All) return result;
    if (task_.kind == MergeKind::Parts) {
      return MergeTask::firstOf(count_ * task_.heads, view_.size, receiver) + result;
    }
    const std::uint32_t own = MergeTask::shareOf(task_.heads, view_.size, receiver);
    const std::uint32_t first = MergeTask::firstOf(task_.heads, view_.size, receiver);
    return static_cast<std::size_t>(result / own) * task_.heads + first + result % own;
  }
  /// Index of a result of `owner` in the outputs.
  SEQPAR_DEVICE std::size_t target(int owner, std::uint32_t result) const {
    return task_.kind == MergeKind::Heads ? result : source(owner, result);
  }

  /// Transfers results [begin, begin + task_.step) of this channel for every receiver.
  SEQPAR_DEVICE bool step(SteppedFifos<Memory, Group>& steps, std::uint32_t begin, bool last) {
    const bool parts = task_.kind == MergeKind::Parts;
    const int self = view_.self;
    const auto items = [&](int receiver) { return range(receiver, begin, task_.step); };
    const Range mine = items(self);
    const auto packetsTo = [&](int peer) {
      return peer == self ? 0 : packetsOf(items(peer)) + (parts ? packetsOf(mine) : 0);
    };
    const auto packetsFrom = [&](int peer) {
      return peer == self ? 0 : packetsOf(mine) + (parts ? packetsOf(items(peer)) : 0);
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
        ok = ok && receiveMerged(steps, owner, items(owner), packetsOf(mine));
      }
    }
    if (!steps.agreeStep(ok)) return false;
    // All threads have read the inputs, which may be in the same place.
    SEQPAR_ROLLED
    for (auto i = static_cast<std::uint32_t>(group_.thread()); i < mine.size();
         i += static_cast<std::uint32_t>(group_.threads())) {
      task_.lseMerged[target(self, mine.begin + i)] = merged[i];
    }
    steps.endStep(last, packetsTo, packetsFrom, [&](const auto& warp) {
      SEQPAR_ROLLED
      for (int peer = 0; peer < view_.size; ++peer) {
        if (peer == self) continue;
        const Receiver<Memory> in = steps.receiver(peer);
        resetWords(in, warp, mine.size() * task_.packets, mine.size());
        if (parts) takeLse(in, warp, peer, items(peer), packetsOf(mine));
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
      const std::size_t from = source(peer, items.begin + item);
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
    const std::size_t from = source(view_.self, mine.begin + item);
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
    float most = -INFINITY;
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (m >= view_.size) continue;
      if (m != view_.self) {
        const Receiver<Memory> in = steps.receiver(m);
        if (m < kHeld) {
          if (!awaitResult(in, m, word, index, bits[m], packet[m])) return false;
        } else if (!in.awaitWord(word, bits[m])) {
          return false;
        }
      }
      const float lse = asFloat(bits[m]);
      most = lse != lse || most != most ? NAN : fmaxf(most, lse);
    }
    const bool none = most == -INFINITY;
    const auto share = [&](std::uint32_t each) {
      const float lse = asFloat(each);
      return lse == -INFINITY ? 0.0F : expf(lse - most);
    };
    float sum = 0;
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) sum += share(bits[m]);
    Values total;
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      if (m >= view_.size || asFloat(bits[m]) == -INFINITY) continue;
      LamportPacket term;
      if (m < kHeld) {
        term = packet[m < kHeld ? m : 0];
      } else if (m == view_.self) {
        term = load(from, lane);
      } else {
        const Receiver<Memory> in = steps.receiver(m);
        term = in.poll(index);
        if (!in.take(index, term)) return false;
      }
      const float weight = share(bits[m]) / sum;
      if (weight != 0) total.add(weight, term);
    }
    const LamportPacket result = sendablePacket(total.pack());
    const float lse = none ? most : most + logf(sum);
    if (lane == 0) merged[item] = lse;
    if (task_.kind == MergeKind::Parts) sendMerged(steps, mine, item, lane, result, lse, items);
    store(target(view_.self, mine.begin + item), lane, result);
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
                                std::uint32_t lane, const LamportPacket& result, float lse, const Items& items) const {
    SEQPAR_ROLLED
    for (int i = 1; i < view_.size; ++i) {
      const int peer = (view_.self + i) % view_.size;
      const CursorSender<Memory> to = steps.sender(peer);
      const std::uint32_t first = packetsOf(items(peer));
      to.put(first + item * task_.packets + lane, result);
      if (lane == 0) {
        to.putWord(4 * (first + mine.size() * task_.packets) + item, sendable(asBits(lse), kAbsentAsFloat));
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
      store(target(owner, items.begin + item), lane, packet);
      if (lane > 0) return;
      const std::uint32_t word = 4 * (first + items.size() * task_.packets) + item;
      std::uint32_t bits = in.pollWord(word);
      ok = in.awaitWord(word, bits);
    });
    return ok;
  }

  template <class Warp>
  SEQPAR_DEVICE static void resetWords(const Receiver<Memory>& in, const Warp& warp, std::uint32_t first,
                                       std::uint32_t words) {
    SEQPAR_ROLLED
    for (auto i = static_cast<std::uint32_t>(warp.thread()); i < (words + 3) / 4;
         i += static_cast<std::uint32_t>(warp.threads())) {
      in.reset(first + i);
    }
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
        if (item < items.size()) task_.lseMerged[target(owner, items.begin + item)] = asFloat(packet.word[j]);
      }
      in.reset(begin + i);
    }
  }

  SEQPAR_DEVICE static LamportPacket sendablePacket(LamportPacket packet) {
    SEQPAR_UNROLL
    for (std::uint32_t& word : packet.word) {
      word = sendable(word, kType == seqparFloat32 ? kAbsentAsFloat : kAbsentAsHalves);
    }
    return packet;
  }

  /// A packet of this rank's partial outputs, as it is sent: so all ranks add equal bits.
  SEQPAR_DEVICE LamportPacket load(std::size_t result, std::uint32_t lane) const {
    if (task_.whole) {
      return sendablePacket(
          readPacket(reinterpret_cast<const LamportPacket*>(task_.out) + result * task_.packets + lane));
    }
    return loadSingly(task_, result, lane);
  }
  SEQPAR_DEVICE void store(std::size_t result, std::uint32_t lane, const LamportPacket& packet) const {
    if (task_.whole) {
      Memory::writeIf(true, reinterpret_cast<LamportPacket*>(task_.outMerged) + result * task_.packets + lane, packet);
    } else {
      storeSingly(task_, result, lane, packet);
    }
  }

  /// Element by element; elements past the end of a result are 0.
  SEQPAR_DEVICE_NOINLINE static LamportPacket loadSingly(const MergeTask& task, std::size_t result,
                                                         std::uint32_t lane) {
    LamportPacket packet{};
    const std::uint32_t first = lane * Values::kCount;
    for (std::uint32_t i = 0; i < Values::kCount && first + i < task.elements; ++i) {
      const std::size_t at = result * task.elements + first + i;
      if constexpr (kType == seqparFloat32) {
        packet.word[i] = reinterpret_cast<const std::uint32_t*>(task.out)[at];
      } else {
        packet.word[i / 2] |= std::uint32_t{reinterpret_cast<const std::uint16_t*>(task.out)[at]} << (16 * (i % 2));
      }
    }
    return sendablePacket(packet);
  }
  SEQPAR_DEVICE_NOINLINE static void storeSingly(const MergeTask& task, std::size_t result, std::uint32_t lane,
                                                 const LamportPacket& packet) {
    const std::uint32_t first = lane * Values::kCount;
    for (std::uint32_t i = 0; i < Values::kCount && first + i < task.elements; ++i) {
      const std::size_t at = result * task.elements + first + i;
      if constexpr (kType == seqparFloat32) {
        reinterpret_cast<std::uint32_t*>(task.outMerged)[at] = packet.word[i];
      } else {
        reinterpret_cast<std::uint16_t*>(task.outMerged)[at] =
            static_cast<std::uint16_t>(packet.word[i / 2] >> (16 * (i % 2)));
      }
    }
  }

  const PeerView& view_;
  const MergeTask& task_;
  const Group& group_;
  MergeShared& shared_;
  int channel_;
  std::uint32_t count_ = 0;       ///< rows in use
  std::uint32_t perChannel_ = 0;  ///< results of a channel for a receiver
};

}  // namespace seqpar
