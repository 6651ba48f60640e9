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
  int channels = 1;
  bool brief = false;  ///< CTAs of kBriefThreads threads, which let the next kernel of the stream start early

  static constexpr int kThreads = 256, kBriefThreads = 128;
  int threads() const { return brief ? kBriefThreads : kThreads; }

  /// Sets what follows from kind, type, elements and the addresses. Requires fits().
  void complete() {
    const std::uint32_t each = type == seqparFloat32 ? 4 : 2;
    packets = packetsOf(type, elements);
    const std::uint32_t room = kind == MergeKind::Parts ? kSurePackets / 3 : 2 * (kSurePackets / 3);
    step = room / packets > 1 ? room / packets : 1;
    if (step > kMostItems) step = kMostItems;
    const auto bits = reinterpret_cast<std::uintptr_t>(out) | reinterpret_cast<std::uintptr_t>(outMerged);
    whole = bits % 16 == 0 && elements * each % 16 == 0;
  }
  static constexpr std::uint32_t packetsOf(seqparDataType_t type, std::uint32_t elements) {
    return type == seqparFloat32 ? (elements + 3) / 4 : (elements + 7) / 8;
  }
  /// Whether a merge of this shape can be one kernel.
  static bool fits(std::size_t rows, std::size_t heads, std::size_t rowBytes) {
    return rowBytes <= std::size_t{kMostPackets} * 16 && rows * heads < (std::size_t{1} << 30);
  }

  /// Whether one step and one hop transfer all results, in whole packets: for lse_merge_short.h.
  SEQPAR_BOTH bool isShort(int size) const {
    const auto each = static_cast<std::uint32_t>(channels);
    return whole && kind != MergeKind::Parts && (results(rows, size, 0) + each - 1) / each <= step;
  }

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
  /// Results that `receiver` merges, if `count` rows are in use.
  SEQPAR_BOTH std::uint32_t results(std::uint32_t count, int size, int receiver) const {
    if (kind == MergeKind::All) return count * heads;
    if (kind == MergeKind::Parts) return shareOf(count * heads, size, receiver);
    return count * shareOf(heads, size, receiver);
  }
};

}  // namespace seqpar
