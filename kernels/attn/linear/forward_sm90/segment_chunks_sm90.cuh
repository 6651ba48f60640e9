// The chunks of a segment in the order of pass 1 (segment_states_sm90.cuh).
#pragma once

#include "kernels/attn/linear/forward_sm90/pipeline_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

enum class Pass { Forward, Backward };

/// The chunks of an item: forward from its last token to its first, backward from its first to its last.
template <Pass P>
struct ItemChunks {
  int64_t begin, end;  ///< tokens of the item; the first chunk starts at `begin`
  int count;

  SEQPAR_DEVICE explicit ItemChunks(const Item& item)
      : begin(item.begin),
        end(item.end),
        count(end > begin ? static_cast<int>((end - begin + kChunk - 1) / kChunk) : 0) {}
  /// The first token of the `number`th chunk in that order.
  SEQPAR_DEVICE int64_t token(int number) const {
    return begin + int64_t{P == Pass::Forward ? count - 1 - number : number} * kChunk;
  }
  /// The number of its tokens.
  SEQPAR_DEVICE int length(int number) const { return static_cast<int>(min(end - token(number), int64_t{kChunk})); }
};

/// Marks chunks that are skipped, because all state is forgotten from some chunk of an item on. The transform warpgroup
/// detects this when later chunks are already in flight, and marks the stage of each. It may be items ahead of the
/// consumers: a mark per stage stays valid until the stage is free again, unlike a single word for all stages.
template <int Stages>
struct Skip {
  volatile int* marks;  ///< per stage

  /// Called by one thread, before the chunk `running` is prepared.
  SEQPAR_DEVICE void mark(int running, bool skipped) const { marks[running % Stages] = skipped ? 1 : 0; }
  /// Valid after `running` was prepared, and before its stage is prepared again.
  SEQPAR_DEVICE bool skips(int running) const { return marks[running % Stages] != 0; }
  /// The number of loaded chunks of `count`, if the chunks from `number` on are skipped.
  static SEQPAR_DEVICE int loaded(int number, int count) { return min(count, number + Stages); }
};

}  // namespace seqpar::attn::forward_sm90
