// One rank's part of merging partial attention of all peers in one kernel (lse_merge.h), for kernels and for the host
// code that launches them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/arch/device.h"
#include "kernels/fifo_layout.h"
#include "seqpar/types.h"

namespace seqpar {

/// What is sent. All: every rank sends everything to every rank. Parts: every rank merges an equal part and sends the
/// merged part to all, two hops. Heads: every rank merges its heads.
enum class MergeKind { All, Parts, Heads };

/// A result is one head of one row: `elements` numbers and their lse. The first ranks have one more where parts or
/// heads do not divide.
struct MergeTask {
  static constexpr std::uint32_t kMostPackets = 512;  ///< of a result
  static constexpr std::uint32_t kMostItems = 512;    ///< results of a step

  const std::byte* out = nullptr;  ///< [rows][heads][elements]
  const float* lse = nullptr;      ///< [rows][heads]
  std::byte* outMerged = nullptr;  ///< [rows][heads, or heads of the rank][elements]; may be `out` unless Heads
  float* lseMerged = nullptr;
  const std::int32_t* rowCount = nullptr;  ///< in device memory: rows in use; null: all
  MergeKind kind = MergeKind::All;
  seqparDataType_t type = seqparFloat32;
  std::uint32_t rows = 0, heads = 0, elements = 0;
  std::uint32_t packets = 0;  ///< of a result
  std::uint32_t step = 0;     ///< results of a step for each receiver
  bool whole = false;         ///< results are whole packets, and `out` and `outMerged` are aligned to packets
  std::uint32_t headShare = 0, headExtra = 0;  ///< heads of a rank; one more on this many first ranks
  int channels = 1;
  std::uint32_t perChannel = 0;  ///< results of a channel for a receiver, if all rows are in use
  int threads = kThreads;        ///< of a CTA
  bool brief = false;            ///< lets the next kernel of the stream start early; CTAs of kBriefThreads threads

  static constexpr int kBriefThreads = 128, kThreads = 256, kMostThreads = 1024;

  /// Sets what follows from kind, type, heads, elements and the addresses, for `size` ranks. Requires fits().
  void complete(int size) {
    headShare = heads / static_cast<std::uint32_t>(size);
    headExtra = heads % static_cast<std::uint32_t>(size);
    const std::uint32_t each = type == seqparFloat32 ? 4 : 2;
    packets = packetsOf(type, elements);
    // `step` results of one packet each are 5 / 4 packets with their lse.
    const std::uint32_t sent = kSurePackets / (kind == MergeKind::Parts ? 2 : 1), room = (sent - 1) / 5 * 4;
    step = room / packets > 1 ? room / packets : 1;
    if (step > kMostItems) step = kMostItems;
    const auto bits = reinterpret_cast<std::uintptr_t>(out) | reinterpret_cast<std::uintptr_t>(outMerged);
    whole = bits % 16 == 0 && elements * each % 16 == 0;
  }
  /// After complete().
  void setChannels(int count, int size) {
    channels = count;
    perChannel = partOf(results(rows, size, 0));
  }
  /// Of `results`, those of a channel.
  SEQPAR_BOTH std::uint32_t partOf(std::uint32_t results) const {
    const auto each = static_cast<std::uint32_t>(channels);
    return (results + each - 1) / each;
  }
  static constexpr std::uint32_t packetsOf(seqparDataType_t type, std::uint32_t elements) {
    return type == seqparFloat32 ? (elements + 3) / 4 : (elements + 7) / 8;
  }
  /// Whether a merge of this shape can be one kernel.
  static bool fits(std::size_t rows, std::size_t heads, std::size_t rowBytes) {
    return rowBytes <= std::size_t{kMostPackets} * 16 && rows * heads < (std::size_t{1} << 30);
  }

  /// Whether one step and one hop transfer all results, in whole packets: for lse_merge_short.h.
  bool isShort() const { return whole && kind != MergeKind::Parts && perChannel <= step; }

  /// Of `count` things, those of one of `size` ranks.
  SEQPAR_BOTH static std::uint32_t shareOf(std::uint32_t count, int size, int rank) {
    const auto ranks = static_cast<std::uint32_t>(size);
    return count / ranks + (static_cast<std::uint32_t>(rank) < count % ranks ? 1 : 0);
  }
  SEQPAR_BOTH static std::uint32_t firstOf(std::uint32_t count, int size, int rank) {
    const auto ranks = static_cast<std::uint32_t>(size);
    const auto before = static_cast<std::uint32_t>(rank);
    return before * (count / ranks) + (before < count % ranks ? before : count % ranks);
  }
  SEQPAR_BOTH std::uint32_t headsOf(int rank) const {
    return headShare + (static_cast<std::uint32_t>(rank) < headExtra ? 1 : 0);
  }
  SEQPAR_BOTH std::uint32_t firstHeadOf(int rank) const {
    const auto before = static_cast<std::uint32_t>(rank);
    return before * headShare + (before < headExtra ? before : headExtra);
  }
  /// Results that `receiver` merges, if `count` rows are in use.
  SEQPAR_BOTH std::uint32_t results(std::uint32_t count, int size, int receiver) const {
    if (kind == MergeKind::Parts) return shareOf(count * heads, size, receiver);
    return resultsAtOnce(count, receiver);
  }
  /// results() of kinds without parts.
  SEQPAR_BOTH std::uint32_t resultsAtOnce(std::uint32_t count, int receiver) const {
    return count * (kind == MergeKind::All ? heads : headsOf(receiver));
  }
};

}  // namespace seqpar
