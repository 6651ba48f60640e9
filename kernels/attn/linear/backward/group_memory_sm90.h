// Shared memory, work items and barriers of the gradients' kernel for groups of heads (group_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/chunk_states.h"
#include "kernels/attn/linear/backward/mapped_task_sm90.h"
#include "kernels/attn/linear/backward/token_sweep_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// The task of a launch.
struct GroupTask : MappedTask {
  ChunkStates chunks;            ///< a state and a gradient of each chunk
  CUtensorMap dvBox, dvRestBox;  ///< of dvOut: 64 tokens and 64 columns; with 80 columns, the last 16
  bool storesBoxes = false;      ///< dv of full chunks is stored by the TMA
  int chunksOfSegment = 0;       ///< the most of a segment
  int partBits = 0;              ///< of GroupParts; only with two blocks of keys
};

/// A group's heads as parts, which are processed one after the other: with two blocks of keys, 1 << partBits parts of
/// a head have 64 columns of v each; otherwise a part is a head.
template <class Shape>
struct GroupParts {
  SEQPAR_DEVICE static int bitsOf(const GroupTask& task) { return Shape::kKeyBlocks == 1 ? 0 : task.partBits; }
  SEQPAR_DEVICE static int countOf(const GroupTask& task) { return task.group << bitsOf(task); }
  SEQPAR_DEVICE static int headOf(const GroupTask& task, int part) { return part >> bitsOf(task); }
  SEQPAR_DEVICE static int panelOf(const GroupTask& task, int part) {
    return part - (headOf(task, part) << bitsOf(task));
  }
};

/// Whether the TMA can store dvOut.
template <class T>
bool encodeValues(GroupTask& to, const Task& task) {
  const Target& dv = task.dvOut;
  if (task.tokens == 0 || dv.data == nullptr || !dv.wide) return false;
  LinearProblem problem;
  problem.batch = task.batch;
  problem.tokens = task.tokens;
  const auto encode = [&](CUtensorMap& map, int columns, bool swizzled) {
    const Input tensor{dv.data, dv.batch, dv.token, dv.head};
    return forward_sm90::encodeMap(
        map, {tensor, ptx::kIsBf16<T> ? seqparBfloat16 : seqparFloat16, task.dv, task.heads, columns, kChunk, swizzled},
        problem);
  };
  return encode(to.dvBox, kPanel, true) && (task.keyBlocks > 1 || task.dv <= kPanel || encode(to.dvRestBox, 16, false));
}

/// Without the memory of `chunks`.
template <class T>
bool encodeGroup(GroupTask& to, const Task& task, const ChunkStates& chunks) {
  if (!encodeMaps<T>(to, task)) return false;
  to.storesBoxes = encodeValues<T>(to, task);
  to.chunks = chunks;
  to.chunksOfSegment = static_cast<int>((task.segmentTokens + kChunk - 1) / kChunk);
  while (kPanel << to.partBits < task.dv && task.keyBlocks > 1) ++to.partBits;
  return true;
}

/// Items: (sequence, group of heads, segment, chunk, block of keys), the last index fastest.
SEQPAR_BOTH_INLINE int64_t groupItemsOf(const GroupTask& task) {
  return int64_t{task.batch} * (task.headCount / task.group) * task.segments * task.chunksOfSegment * task.keyBlocks;
}

/// A chunk of a group of heads, and a block of keys.
struct GroupItem {
  int sequence, head, order;  ///< the first head; segments with earlier tokens
  int block;                  ///< of keys
  int rows;                   ///< tokens; none: the segment is shorter
  int64_t first, token;       ///< tokens: of the segment, of the chunk
  int64_t number;             ///< of the chunk in ChunkStates

  SEQPAR_DEVICE GroupItem(const GroupTask& task, uint32_t index, uint32_t keyBlocks) {
    const auto next = [&](uint32_t count) {
      const uint32_t all = index;
      index /= count;
      return static_cast<int>(all - index * count);
    };
    block = next(keyBlocks);
    const int chunk = next(static_cast<uint32_t>(task.chunksOfSegment)),
              segment = next(static_cast<uint32_t>(task.segments));
    const auto groups = static_cast<uint32_t>(task.headCount) / static_cast<uint32_t>(task.group);
    head = task.firstHead + next(groups) * task.group;
    sequence = static_cast<int>(index);
    int64_t end;
    if (task.spans != nullptr) {
      order = task.spans[segment].order;
      first = task.spans[segment].begin;
      end = task.spans[segment].end;
    } else {
      order = segment;
      first = segment * task.segmentTokens;
      end = first + task.segmentTokens < task.tokens ? first + task.segmentTokens : task.tokens;
    }
    token = first + int64_t{chunk} * kChunk;
    const int64_t left = end - token;
    rows = left < 0 ? 0 : left < kChunk ? static_cast<int>(left) : kChunk;
    number = task.chunks.numberOf(*this) + chunk;
  }
  /// The image of the state before the chunk; `ofGroup`: of the group's heads.
  template <class T>
  SEQPAR_DEVICE const T* imageOf(const void* all, const GroupTask& task, int ofGroup, int keyBlock, int panel) const {
    return static_cast<const T*>(all) + task.chunks.panelAt(task, sequence, head + ofGroup, keyBlock, panel, number);
  }
};

constexpr int kOfScores = 9, kOfTotal = 10;  ///< named barriers

/// Shared memory. Shape: ImageShape.
template <class T, class Shape>
struct GroupMemory {
  static constexpr int kKeyBlocks = Shape::kKeyBlocks, kKeyPanels = kKeyBlocks * Shape::kKeyPanels;
  static constexpr int kStages = Shape::kWide || kKeyBlocks > 1 ? 2 : 3, kConsumerWarps = 16;
  static constexpr int kTileOfKeys = kKeyPanels * kTilePanel, kTileOfValues = Shape::kPanels * kTilePanel;
  static constexpr int kSlots = 2 * kStages;                  ///< of factors and sums, which are kept longer than tiles
  static constexpr int kCarryLanes = kKeyBlocks > 1 ? 4 : 8;  ///< lanes of a warp that store sums; memory bounds them
  /// A head's tiles, factors and sums.
  struct Stage {
    alignas(1024) T v[kTileOfValues], dOut[kTileOfValues], before[Shape::kElements];
    T after[kKeyBlocks * Shape::kElements];  ///< the item's block of keys first
  };
  /// Whether the item computes dv, A and the sums of a part of the group's heads: the items of a chunk take turns.
  SEQPAR_DEVICE static bool hasValues(const GroupItem& item, int part) {
    return kKeyBlocks == 1 || part % kKeyBlocks == item.block;
  }
  /// The item's block of q or k, or the other one.
  SEQPAR_DEVICE static int keysAt(const GroupItem& item, bool other = false) {
    if constexpr (kKeyBlocks == 1) return 0;
    return (other ? 1 - item.block : item.block) * Shape::kKeyPanels * kTilePanel;
  }
  /// Of a head's tokens.
  struct Factors {
    float fromStart[kChunk];                 ///< the scale times the decay from the chunk's start
    float toEnd[kChunk];                     ///< decays to the chunk's end
    float sums[kChunk];                      ///< of logarithms
    alignas(16) float pairs[kChunk / 2][4];  ///< of two tokens: inverse decays from the chunk's start; input gates

    SEQPAR_DEVICE float& inverse(int row) { return pairs[row / 2][row % 2]; }
    SEQPAR_DEVICE float& gate(int row) { return pairs[row / 2][2 + row % 2]; }
    SEQPAR_DEVICE float gate(int row) const { return pairs[row / 2][2 + row % 2]; }

    /// Whether no factor is 0, and products of one factor of each of two tokens are exact to rounding.
    SEQPAR_DEVICE bool areLittle() const { return sums[kChunk - 1] >= kLeastOfFactors; }
  };
  /// Of a head's tokens, for the gates' gradients.
  struct Sums {
    float queries[2][kChunk];         ///< of each warpgroup's keys: A dA
    float states[kChunk];             ///< q times the state's term of dq
    float values[2][kChunk];          ///< of each warpgroup's columns: v dv, without input gates
    float carry[2][4 * kCarryLanes];  ///< of S E, per lane of warps of dq and of dk
  };
  alignas(1024) T q[kTileOfKeys], k[kTileOfKeys];
  Stage stages[kStages];
  T matrix[kTilePanel];  ///< A; then dA, added over the heads
  T out[2][kTilePanel];  ///< dv of even and odd heads
  alignas(128) T others[2][kChunk * (Shape::kWide ? Shape::kColumns - kPanel : 1)];  ///< its columns after the first 64
  Factors factors[kSlots];
  Sums sums[kSlots];
  /// mbarriers (group_sm90.h).
  alignas(8) uint64_t full[kStages], empty[kStages], partial[kStages], shared, sharedEmpty, sharedPartial, multiplied;
  uint64_t summed[kSlots], written[kSlots];

  SEQPAR_DEVICE void init() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrierInit(ptx::sharedAddress(full + i), 1 + 32);  // the loading thread, the warp of factors
      ptx::mbarrierInit(ptx::sharedAddress(empty + i), kConsumerWarps);
      ptx::mbarrierInit(ptx::sharedAddress(partial + i), 1);
    }
    for (int i = 0; i < kSlots; ++i) {
      ptx::mbarrierInit(ptx::sharedAddress(summed + i), kConsumerWarps);
      ptx::mbarrierInit(ptx::sharedAddress(written + i), 1);
    }
    ptx::mbarrierInit(ptx::sharedAddress(&shared), 1);
    ptx::mbarrierInit(ptx::sharedAddress(&sharedEmpty), kConsumerWarps);
    ptx::mbarrierInit(ptx::sharedAddress(&sharedPartial), 1);
    ptx::mbarrierInit(ptx::sharedAddress(&multiplied), kConsumerWarps / 2);
    ptx::fenceMbarrierInit();
  }
};

/// A consumer thread's position: of four warpgroups.
struct GroupPosition {
  int group, warp, lane;
  int g, c, row;  ///< as in Place

  SEQPAR_DEVICE GroupPosition()
      : GroupPosition(ptx::thread(), ptx::uniform(ptx::thread() / 128), ptx::uniform(ptx::thread() / 32 % 4)) {}
  SEQPAR_DEVICE GroupPosition(int thread, int theGroup, int theWarp)
      : group(theGroup & 3), warp(theWarp & 3), lane(thread % 32), g(lane / 4), c(lane % 4), row(warp * 16 + g) {}
  /// As Place::opaque().
  SEQPAR_DEVICE GroupPosition opaque() const { return {ptx::opaqueThread(), group, warp}; }
  /// This thread's position.
  SEQPAR_DEVICE static GroupPosition own() {
    return {ptx::thread() & 31, ptx::uniform(ptx::thread() / 128), ptx::uniform(ptx::thread() / 32 % 4)};
  }
  /// An opaque copy. Unlike opaque() it does not read the thread's index again, for which products would wait, but it
  /// keeps the lane in a register.
  SEQPAR_DEVICE GroupPosition copy() const { return {ptx::opaque(lane) & 31, group, warp}; }
  /// The lane's address for ldmatrix and stmatrix of 16 rows and units `unit`, + 1 of a panel.
  template <class E>
  SEQPAR_DEVICE E* at(E* panel, int unit) const {
    const ptx::MatrixRows own{lane};
    const int r = own.row(warp * 16);
    return panel + r * kPanel + ((unit + own.half()) ^ (r % 8)) * 8;
  }
};

/// The next of kCount stages, which are used in turns, and the parity of its barriers' phase.
template <int kCount>
struct StagesOf {
  int stage = 0, parity = 0;

  /// The next of twice as many slots.
  SEQPAR_DEVICE int slot() const { return stage + parity * kCount; }
  SEQPAR_DEVICE void next() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Calls act(item) for the CTA's items that have tokens.
template <class Shape, class Act>
SEQPAR_DEVICE void eachChunk(const GroupTask& task, const Act& act) {
  const auto items = static_cast<uint32_t>(groupItemsOf(task));  // each has images of more than 4 KiB
  for (uint32_t index = ptx::block(); index < items; index += ptx::blocks()) {
    const GroupItem item(task, index, Shape::kKeyBlocks);
    if (item.rows > 0) act(item);
  }
}

/// Waits until the barrier's phase of that parity has ended.
SEQPAR_DEVICE void awaitPhase(uint64_t& barrier, int parity) {
  ptx::mbarrierWaitParity(ptx::sharedAddress(&barrier), parity);
}
/// Arrives once for a warp.
SEQPAR_DEVICE void arriveWarp(uint64_t& barrier, const GroupPosition& me) {
  ptx::syncwarp();
  if (me.lane == 0) ptx::mbarrierArrive(ptx::sharedAddress(&barrier));
}

/// Arrives once for a warp that has stored its sums and does not read the head's tiles any more.
template <class Memory, class Stages>
SEQPAR_DEVICE void finishHead(Memory& memory, const Stages& pipe, const GroupPosition& me) {
  ptx::syncwarp();
  if (me.lane != 0) return;
  ptx::mbarrierArrive(ptx::sharedAddress(memory.empty + pipe.stage));
  ptx::mbarrierArrive(ptx::sharedAddress(memory.summed + pipe.slot()));
}
/// Stores 8 elements.
SEQPAR_DEVICE void putUnit(const Target& to, uint16_t* at, const uint32_t (&words)[4]) {
  if (to.wide) return ptx::storeStreaming(static_cast<void*>(at), words);
  SEQPAR_UNROLL
  for (int i = 0; i < 8; ++i) at[i] = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
}

/// Adds two sums of each of this thread's two rows over the four lanes of a row, and stores them.
SEQPAR_DEVICE void storeRowSums(float* first, const float (&firstRows)[2], float* second, const float (&secondRows)[2],
                                const GroupPosition& me) {
  const bool odd = me.c % 2 != 0, upper = me.c / 2 != 0;
  const auto exchange = [&](const float(&rows)[2]) {  // even lanes have the first row, odd lanes the second
    return (odd ? rows[1] : rows[0]) + ptx::shflXor(odd ? rows[0] : rows[1], 1);
  };
  const float ofFirst = exchange(firstRows), ofSecond = exchange(secondRows);
  const float sum = (upper ? ofSecond : ofFirst) + ptx::shflXor(upper ? ofFirst : ofSecond, 2);
  (upper ? second : first)[me.row + (odd ? 8 : 0)] = sum;
}

/// Adds over the four lanes of a row, and stores the sums of this thread's two rows.
SEQPAR_DEVICE void storeRowSums(float* to, const float (&rows)[2], const GroupPosition& me) {
  const bool odd = me.c % 2 != 0;  // even lanes have the first row, odd lanes the second
  float sum = (odd ? rows[1] : rows[0]) + ptx::shflXor(odd ? rows[0] : rows[1], 1);
  sum += ptx::shflXor(sum, 2);
  if (me.c < 2) to[me.row + (odd ? 8 : 0)] = sum;
}

}  // namespace seqpar::attn::backward::sm90
