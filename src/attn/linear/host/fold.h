// One head's state through the segments of its batch entry, forward and in reverse, for every family's maps.
#pragma once

#include <algorithm>

#include "attn/linear/host/segments.h"

namespace seqpar::attn::linear {

/// From the incoming state `before` (null: 0) and, where a sequence starts, its state in `initial` (null: 0). `task`:
/// entry and head. keep(segment number, segment, state) gets the state before each segment, and apply(segment number,
/// state) replaces it by the state after it. `running`: the last state.
template <class Keep, class Apply>
void foldHead(const Shard& shard, const Chunks& chunks, size_t task, const float* initial, const float* before,
              float* running, const Keep& keep, const Apply& apply) {
  const size_t heads = shard.heads, size = shard.stateSize(), segments = chunks.segmentsOfEntry();
  const auto set = [&](const float* from) {
    if (from != nullptr) {
      std::copy_n(from, size, running);
    } else {
      std::fill_n(running, size, 0.0f);
    }
  };
  set(before == nullptr ? nullptr : before + task * size);
  for (size_t s = task / heads * segments; s < (task / heads + 1) * segments; ++s) {
    const Segment segment = chunks.segment(s);
    if (segment.piece->begins && !segment.continues) {
      set(initial == nullptr ? nullptr : initial + (segment.piece->sequence * heads + task % heads) * size);
    }
    keep(s, segment, running);
    apply(s, running);
  }
}

/// From the gradient `after` of the last state (null: 0); `keep` gets the gradient of the state after each segment, and
/// ofInitial(sequence, gradient) that of the state before each sequence that starts here.
template <class Keep, class Apply, class OfInitial>
void foldHeadBack(const Shard& shard, const Chunks& chunks, size_t task, const float* after, float* running,
                  const Keep& keep, const Apply& apply, const OfInitial& ofInitial) {
  const size_t heads = shard.heads, size = shard.stateSize(), segments = chunks.segmentsOfEntry();
  if (after != nullptr && (shard.pieces.empty() || shard.pieces.back().reachesEnd)) {
    std::copy_n(after + task * size, size, running);
  } else {
    std::fill_n(running, size, 0.0f);
  }
  for (size_t s = (task / heads + 1) * segments; s-- > task / heads * segments;) {
    const Segment segment = chunks.segment(s);
    keep(s, segment, running);
    apply(s, running);
    if (!segment.piece->begins || segment.continues) continue;
    ofInitial(segment.piece->sequence, running);
    std::fill_n(running, size, 0.0f);
  }
}

}  // namespace seqpar::attn::linear
