// Values of the merges of partial attention: packets of outputs in the caller's memory, and the merge of one packet of
// all peers.
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

/// The caller's packets. Packets that are not whole are read and written element by element.
template <seqparDataType_t kType, class Memory>
struct MergePackets {
  static constexpr std::uint32_t kCount = MergeValues<kType>::kCount;

  SEQPAR_DEVICE static LamportPacket sendable(LamportPacket packet) {
    SEQPAR_UNROLL
    for (std::uint32_t& word : packet.word) {
      word = seqpar::sendable(word, kType == seqparFloat32 ? kAbsentAsFloat : kAbsentAsHalves);
    }
    return packet;
  }

  /// A packet of this rank's partial outputs, as it is sent: so all ranks add equal bits.
  SEQPAR_DEVICE static LamportPacket load(const MergeTask& task, std::size_t result, std::uint32_t lane) {
    return task.whole ? loadWhole(task, result, lane) : loadSingly(task, result, lane);
  }
  SEQPAR_DEVICE static LamportPacket loadWhole(const MergeTask& task, std::size_t result, std::uint32_t lane) {
    return sendable(readPacket(reinterpret_cast<const LamportPacket*>(task.out) + result * task.packets + lane));
  }
  SEQPAR_DEVICE static void store(const MergeTask& task, std::size_t result, std::uint32_t lane,
                                  const LamportPacket& packet) {
    if (task.whole) {
      storeWhole(task, result, lane, packet);
    } else {
      storeSingly(task, result, lane, packet);
    }
  }
  SEQPAR_DEVICE static void storeWhole(const MergeTask& task, std::size_t result, std::uint32_t lane,
                                       const LamportPacket& packet) {
    Memory::writeIf(true, reinterpret_cast<LamportPacket*>(task.outMerged) + result * task.packets + lane, packet);
  }

  /// Elements past the end of a result are 0.
  SEQPAR_DEVICE_NOINLINE static LamportPacket loadSingly(const MergeTask& task, std::size_t result,
                                                         std::uint32_t lane) {
    LamportPacket packet{};
    const std::uint32_t first = lane * kCount;
    for (std::uint32_t i = 0; i < kCount && first + i < task.elements; ++i) {
      const std::size_t at = result * task.elements + first + i;
      if constexpr (kType == seqparFloat32) {
        packet.word[i] = reinterpret_cast<const std::uint32_t*>(task.out)[at];
      } else {
        packet.word[i / 2] |= std::uint32_t{reinterpret_cast<const std::uint16_t*>(task.out)[at]} << (16 * (i % 2));
      }
    }
    return sendable(packet);
  }
  SEQPAR_DEVICE_NOINLINE static void storeSingly(const MergeTask& task, std::size_t result, std::uint32_t lane,
                                                 const LamportPacket& packet) {
    const std::uint32_t first = lane * kCount;
    for (std::uint32_t i = 0; i < kCount && first + i < task.elements; ++i) {
      const std::size_t at = result * task.elements + first + i;
      if constexpr (kType == seqparFloat32) {
        reinterpret_cast<std::uint32_t*>(task.outMerged)[at] = packet.word[i];
      } else {
        reinterpret_cast<std::uint16_t*>(task.outMerged)[at] =
            static_cast<std::uint16_t>(packet.word[i / 2] >> (16 * (i % 2)));
      }
    }
  }
};

/// One packet of a result of all peers, and the result's lse, as bits.
struct MergedPacket {
  LamportPacket packet;
  float lse = -INFINITY;
};

/// Merges in the order of the peers. `bits`: the lse of each, -inf past the last peer; termOf(m, term) gives the packet
/// of a peer with another lse, and returns false on timeout. All programs use this function, so they compute equal
/// bits.
template <seqparDataType_t kType, class Memory, int kMost, class TermOf>
SEQPAR_DEVICE bool mergePackets(const std::uint32_t (&bits)[kMost], const TermOf& termOf, MergedPacket& merged) {
  float most = -INFINITY;
  SEQPAR_UNROLL
  for (int m = 0; m < kMost; ++m) {
    const float lse = asFloat(bits[m]);
    most = lse != lse || most != most ? NAN : fmaxf(most, lse);
  }
  const auto share = [&](std::uint32_t each) {
    const float lse = asFloat(each);
    return lse == -INFINITY ? 0.0F : expf(lse - most);
  };
  float sum = 0, shares[kMost];
  SEQPAR_UNROLL
  for (int m = 0; m < kMost; ++m) {
    shares[m] = share(bits[m]);
    sum += shares[m];
  }
  MergeValues<kType> total;
  SEQPAR_UNROLL
  for (int m = 0; m < kMost; ++m) {
    if (asFloat(bits[m]) == -INFINITY) continue;
    LamportPacket term;
    if (!termOf(m, term)) return false;
    const float weight = shares[m] / sum;
    if (weight != 0) total.add(weight, term);
  }
  merged.packet = MergePackets<kType, Memory>::sendable(total.pack());
  merged.lse = most == -INFINITY ? most : most + logf(sum);
  return true;
}

/// Rows in use.
SEQPAR_DEVICE std::uint32_t rowsOf(const MergeTask& task) {
  if (task.rowCount == nullptr) return task.rows;
  const std::int32_t given = *task.rowCount;
  const std::uint32_t used = given < 0 ? 0 : static_cast<std::uint32_t>(given);
  return used < task.rows ? used : task.rows;
}

/// Which results a channel transfers, and where they are. kParts: MergeKind::Parts is possible.
template <bool kParts>
struct MergeChannel {
  const MergeTask& task;
  int peers, channel;
  std::uint32_t rows, perChannel;  ///< rows in use; results of a channel for a receiver

  SEQPAR_DEVICE MergeChannel(const MergeTask& aTask, int aPeers, int aChannel)
      : task(aTask), peers(aPeers), channel(aChannel), rows(rowsOf(aTask)) {
    // No receiver has more results than the first.
    perChannel = task.rowCount == nullptr ? task.perChannel : task.partOf(results(0));
  }

  struct Range {
    std::uint32_t begin, end;
    SEQPAR_DEVICE std::uint32_t size() const { return end - begin; }
  };
  /// Results [first, first + count) of the channel for a receiver.
  SEQPAR_DEVICE Range range(int receiver, std::uint32_t first, std::uint32_t count) const {
    const std::uint32_t all = results(receiver);
    const std::uint32_t base = static_cast<std::uint32_t>(channel) * perChannel;
    const std::uint32_t end = first + count < perChannel ? first + count : perChannel;
    return {least(base + first, all), least(base + end, all)};
  }
  SEQPAR_DEVICE std::uint32_t results(int receiver) const {
    if constexpr (kParts) return task.results(rows, peers, receiver);
    return task.resultsAtOnce(rows, receiver);
  }
  SEQPAR_DEVICE static std::uint32_t least(std::uint32_t a, std::uint32_t b) { return a < b ? a : b; }
  SEQPAR_DEVICE std::uint32_t packetsOf(const Range& items) const {
    return items.size() * task.packets + (items.size() + 3) / 4;
  }

  /// Index of a receiver's result in `out` and `lse`.
  SEQPAR_DEVICE std::size_t source(int receiver, std::uint32_t result) const {
    if (task.kind == MergeKind::All) return result;
    if constexpr (kParts) {
      if (task.kind == MergeKind::Parts) return MergeTask::firstOf(rows * task.heads, peers, receiver) + result;
    }
    const std::uint32_t own = task.headsOf(receiver), row = result / own;
    return static_cast<std::size_t>(row) * task.heads + task.firstHeadOf(receiver) + result - row * own;
  }
  /// Index of a result of `owner` in the outputs.
  SEQPAR_DEVICE std::size_t target(int owner, std::uint32_t result) const {
    return task.kind == MergeKind::Heads ? result : source(owner, result);
  }
};

/// Resets the packets of `words` words, starting at packet `first`.
template <class Memory, class Warp>
SEQPAR_DEVICE void resetWords(const Receiver<Memory>& in, const Warp& warp, std::uint32_t first, std::uint32_t words) {
  SEQPAR_ROLLED
  for (auto i = static_cast<std::uint32_t>(warp.thread()); i < (words + 3) / 4;
       i += static_cast<std::uint32_t>(warp.threads())) {
    in.reset(first + i);
  }
}

}  // namespace seqpar
