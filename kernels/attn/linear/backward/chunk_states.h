// The states before groups of chunks, and the gradients of the states after them, in device memory
// (chunk_states_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/task.h"
#include "kernels/attn/linear/pairs.h"

namespace seqpar::attn::backward {

/// Images of the states of heads of a pair: columns of v, 64 or kWideColumns, and channels, 64 or 128. An image with
/// more than 64 columns is transposed. kKeyBlocksOf: images of a state, for keys of more than 128 channels.
template <int kColumnsOf, int kKeysOf, int kKeyBlocksOf = 1>
struct ImageShape {
  static constexpr int kColumns = kColumnsOf, kKeys = kKeysOf, kElements = kColumns * kKeys;
  static constexpr int kKeyBlocks = kKeyBlocksOf;
  using OfBlock = ImageShape<kColumns, kKeys>;
  static constexpr bool kWide = kColumns > 64, kShort = kKeys <= 64;
  static constexpr int kPanels = kWide ? 2 : 1, kKeyPanels = kKeys / 64;  ///< of 64 columns of tiles of v and of keys
  static_assert(!kWide || !kShort);
  static_assert(kKeyBlocks == 1 || (!kWide && !kShort));
};
/// Calls run.operator()<ImageShape>().
template <class Run>
auto withImageShape(const Task& task, const Run& run) {
  if (task.dk > kBlock) return run.template operator()<ImageShape<64, kBlock, 2>>();
  if (task.dv > 64) return run.template operator()<ImageShape<kWideColumns, kBlock>>();
  if (task.dk <= 64) return run.template operator()<ImageShape<64, 64>>();
  return run.template operator()<ImageShape<64, kBlock>>();
}

/// Panels of 128 channels x 64 columns in 16 bits, as an operand's panel in shared memory (kernels/arch/warpgroup.h).
/// Pairs of heads: an ImageShape per head, 64 or 128 channels x 64 columns, or kWideColumns x 128 channels, an operand
/// of two panels.
struct ChunkStates {
  void *states = nullptr, *gradients = nullptr;  ///< of the elements' type; `gradients` only with two directions
  int directions = 2;                            ///< 1: only the first one
  int firstDirection = 0;                        ///< 0: states; 1: gradients
  int every = 1;                                 ///< chunks of kChunk tokens per group: one state and one gradient
  int64_t slots = 0;                             ///< groups of a head, or a bound
  int panels = 1;                                ///< per head
  int elements = kElements;                      ///< of a panel
  int64_t panelStride = 0, groupStride = 0;      ///< elements; groupStride: of a panel
  float* finalState = nullptr;                   ///< out: [batch][heads][dk][dv], of the rank; NULL: not written

  static constexpr int kElements = kBlock * 64;  ///< of a panel of one head

  /// The first element of a panel. `panel`: 64 columns of v; `number`: of a group, numberOf() for a segment's first
  /// one.
  SEQPAR_BOTH_INLINE int64_t panelAt(const Task& task, int sequence, int head, int keyBlock, int panel,
                                     int64_t number) const {
    const int64_t row = ((int64_t{sequence} * task.heads + head) * task.keyBlocks + keyBlock) * panels + panel;
    return row * panelStride + number * groupStride;
  }
  /// `item` has the segment's first token and its order. Each segment has groups of its own.
  template <class Of>
  SEQPAR_DEVICE int64_t numberOf(const Of& item) const {
    return item.first / (int64_t{kChunk} * every) + item.order;
  }
  /// Bytes of `states`, and of `gradients`, for 16-bit elements.
  SEQPAR_BOTH_INLINE int64_t bytes(const Task& task) const {
    return int64_t{task.batch} * task.heads * task.keyBlocks * panels * slots * elements * 2;
  }
};

/// Without the memory. `every`: chunks per group.
inline ChunkStates chunkStatesOf(const Task& task, int every) {
  ChunkStates to;
  to.every = every;
  to.slots = task.tokens / (int64_t{kChunk} * every) + task.segments;
  to.panels = task.together == kPair ? 1 : 2 * task.valueBlocks;
  if (task.together == kPair) withImageShape(task, [&]<class Shape>() { to.elements = Shape::kElements; });
  // CTAs with chains of several heads store panels of a group at about the same time, so these are adjacent. With
  // channel decays this order is not faster.
  const bool adjacent = task.gate != Gate::Channel;
  const int64_t panels = int64_t{task.batch} * task.heads * task.keyBlocks * to.panels;
  to.panelStride = adjacent ? to.elements : to.slots * to.elements;
  to.groupStride = adjacent ? panels * to.elements : to.elements;
  return to;
}

}  // namespace seqpar::attn::backward
