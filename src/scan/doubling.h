// The rounds of an exclusive scan by recursive doubling.
#pragma once

#include <vector>

namespace seqpar {

/// In one round every position p that has anything to send sends to p + skip what lies in front of p: of the `skip`
/// positions before p or, with `own`, of the skip - 1 positions before p and of p itself.
struct DoublingRound {
  int skip;
  bool own;
};

/// The rounds for `size` positions: skips 1, 2, 3, 6, 12, ...; after a round, the positions that were reached know a
/// run of 1, 3, 6, 12, ... positions before them. ceil(log2(size - 1) + log2(4/3)) rounds; none for one position.
std::vector<DoublingRound> doublingRounds(int size);

}  // namespace seqpar
