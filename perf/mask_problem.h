// The problem of a mask of slices with the layout that balances it, for programs that call the planner directly.
#pragma once

#include <vector>

#include "attn/problem/mask.h"
#include "mask_examples.h"

namespace seqpar::attn::perf {

/// Queries and keys on `ranks` ranks with GPUs. `program` is named in errors.
inline Problem solvedProblem(const char* program, const Slices& slices, int64_t tokens, int ranks) {
  const auto desc = descOf(slices, tokens);
  std::vector<int64_t> bounds(2 * static_cast<size_t>(ranks));
  std::vector<int> owners(bounds.size());
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  layout.kind = seqparPieces;
  layout.tokens = tokens;
  layout.ranks = ranks;
  check(seqparAttnSolveLayout(&desc, ranks, nullptr, bounds.data(), owners.data(), &layout.pieces));
  layout.pieceBounds = bounds.data();
  layout.pieceOwners = owners.data();
  Problem problem;
  problem.slices = readSlices(program, desc);
  problem.info.nranks = ranks;
  problem.info.device = 0;
  problem.queries = problem.keys = Sharding(program, layout);
  problem.table = makeScoreTable(problem.queries, problem.keys, problem.visibility());
  return problem;
}

}  // namespace seqpar::attn::perf
