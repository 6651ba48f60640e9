// Work items of the linear-attention kernels.
#pragma once

#include "kernels/arch/device.h"
#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// A work item: a segment of one head and a tile of columns of v.
struct Item {
  int64_t batch = 0;
  int head = 0, tile = 0, segment = 0;
  int before = 0, after = 0;  ///< segments of the same sequence on this rank
  /// Whether the rank's incoming or outgoing state is the state of this sequence.
  bool continues = true, reachesEnd = true;
  int64_t begin = 0, end = 0;  ///< tokens
};

SEQPAR_BOTH_INLINE int64_t itemCount(const LinearProblem& problem, const HeadRange& heads, int segments, int tiles) {
  return problem.batch * heads.count * segments * tiles;
}

/// Order of items: tiles of a head, then heads, which are adjacent in memory, then `segments` segments starting at
/// `firstSegment`.
SEQPAR_BOTH_INLINE Item itemAt(int64_t index, const LinearProblem& problem, const HeadRange& heads, const Segments& cut,
                               int segments, int tiles, int firstSegment = 0) {
  Item item;
  item.tile = static_cast<int>(index % tiles);
  index /= tiles;
  item.head = heads.first + static_cast<int>(index % heads.count);
  index /= heads.count;
  item.segment = firstSegment + static_cast<int>(index % segments);
  item.batch = index / segments;
  if (cut.spans != nullptr) {
    const Span& span = cut.spans[item.segment];
    item.begin = span.begin;
    item.end = span.end;
    item.before = span.before;
    item.after = span.after;
    item.continues = span.continues != 0;
    item.reachesEnd = span.reachesEnd != 0;
    return item;
  }
  item.begin = cut.begin + item.segment * cut.tokens;
  const int64_t end = item.begin + cut.tokens;
  item.end = end < problem.tokens ? end : problem.tokens;
  item.before = item.segment;
  item.after = cut.count - 1 - item.segment;
  return item;
}

/// Whether the segment's map ignores its input: forward (startsSequence), in reverse (ends).
SEQPAR_BOTH_INLINE bool startsSequence(const Item& item) {
  return item.before == 0 && !item.continues;
}
SEQPAR_BOTH_INLINE bool ends(const Item& item) {
  return item.after == 0 && !item.reachesEnd;
}

/// Index of (batch, head) among all, and of its map of a segment among all maps.
SEQPAR_BOTH_INLINE int64_t headIndex(const Item& item, const LinearProblem& problem) {
  return item.batch * problem.heads + item.head;
}
SEQPAR_BOTH_INLINE int64_t mapIndex(const Item& item, const LinearProblem& problem, const Segments& cut) {
  return headIndex(item, problem) * cut.count + item.segment;
}

SEQPAR_BOTH_INLINE int qkHead(const LinearProblem& problem, int head) {
  return head / (problem.heads / problem.qkHeads);
}

}  // namespace seqpar::attn
