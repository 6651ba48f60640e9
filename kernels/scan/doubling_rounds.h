// Rounds of an exclusive scan by recursive doubling, the same for hosts, kernels and cost models. Source: 123-doubling,
// Traeff, "exclusive scan", arXiv 2507.04785.
#pragma once

#include "kernels/fifo_layout.h"

namespace seqpar {

/// In one round every position p that has a map to send sends it to p + skip: the map of the `skip` positions before p
/// or, with `own`, of the skip - 1 positions before p and of p itself. After the rounds with skips 1, 2, 3, 6, 12, ...,
/// the receiving positions know the maps of 1, 3, 6, 12, ... positions before them.
struct DoublingRound {
  int skip;
  bool own;

  /// Whether position `from`, which may be negative, sends in this round. Position 0 has no predecessors.
  SEQPAR_BOTH constexpr bool sends(int from, int positions) const {
    return from >= 0 && from + skip < positions && (own || from > 0);
  }
  /// Whether the map that position `from` sends starts at position 0, and so needs no coefficients.
  SEQPAR_BOTH constexpr bool isAbsolute(int from) const { return from - skip + (own ? 1 : 0) <= 0; }
};

SEQPAR_BOTH constexpr DoublingRound doublingRound(int number) {
  if (number < 2) return {number + 1, true};
  return {3 << (number - 2), false};
}

SEQPAR_BOTH constexpr bool hasDoublingRound(int number, int positions) {
  return number < 2 ? number + 1 < positions : doublingRound(number).skip < positions - 1;
}

/// ceil(log2(positions - 1) + log2(4/3)); 0 for one position.
SEQPAR_BOTH constexpr int doublingRounds(int positions) {
  int count = 0;
  while (hasDoublingRound(count, positions)) ++count;
  return count;
}

}  // namespace seqpar
