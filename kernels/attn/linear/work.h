// What one CTA of the linear-attention kernels works on.
#pragma once

#include "kernels/attn/linear/args.h"
#include "kernels/both.h"

namespace seqpar::attn {

/// A piece of work: a segment of one head and a tile of columns of v.
struct Item {
  int64_t batch = 0;
  int head = 0, tile = 0, segment = 0;
  int64_t begin = 0, end = 0;  ///< tokens
};

SEQPAR_BOTH_INLINE int64_t itemCount(const LinearProblem& problem, const HeadRange& heads, int segments, int tiles) {
  return problem.batch * heads.count * segments * tiles;
}

/// Tiles of a head follow each other, then heads, whose rows are neighbors in memory, then segments, of which there are
/// `segments` from `firstSegment` on.
SEQPAR_BOTH_INLINE Item itemAt(int64_t index, const LinearProblem& problem, const HeadRange& heads, const Segments& cut,
                               int segments, int tiles, int firstSegment = 0) {
  Item item;
  item.tile = static_cast<int>(index % tiles);
  index /= tiles;
  item.head = heads.first + static_cast<int>(index % heads.count);
  index /= heads.count;
  item.segment = firstSegment + static_cast<int>(index % segments);
  item.batch = index / segments;
  item.begin = cut.begin + item.segment * cut.tokens;
  const int64_t end = item.begin + cut.tokens;
  item.end = end < problem.tokens ? end : problem.tokens;
  return item;
}

/// Of (batch, head) among all, and of its map of a segment among all maps.
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
