// Layouts of pieces that balance tokens and scores: circles are cut recursively.
#pragma once

#include <vector>

#include "attn/problem/load.h"

namespace seqpar::attn {

/// An interval of tokens on a rank.
struct Piece {
  Interval tokens;
  int owner = 0;
};

/// At most 2 * ranks - 1 pieces of `tokens` tokens, ascending, without empty pieces. See seqparAttnSolveLayout().
/// `ownKeys`: the tokens are also the keys, so a rank does not receive its own.
std::vector<Piece> solveLayout(const SliceMask& mask, int64_t tokens, int ranks, int64_t granule, bool ownKeys);

}  // namespace seqpar::attn
