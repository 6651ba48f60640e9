// Gathering of ranges of tokens: every member receives the ranges that it needs of a sharded array, and the adjoint.
#pragma once

#include <cstddef>
#include <vector>

#include "exchange/shards.h"

namespace seqpar {

/// Tokens [first, first + count) of the whole array.
struct Range {
  std::size_t first = 0, count = 0;
};

/// The ranges of each member, in the order of its array [outer][tokens of its ranges][inner]. No two ranges of a member
/// have a common token.
using RangesOfMembers = std::vector<std::vector<Range>>;

/// The tokens of all ranges.
std::size_t tokensOf(const std::vector<Range>& ranges);

/// Every member's shard (send buffer 0) to the members whose ranges contain tokens of it (receive buffer 0).
Route gatherRangesRoute(const Shards& shards, const RangesOfMembers& ranges, std::size_t member);

/// The adjoint: the copies of each token (send buffer 0) are added in the order of the members; each member receives
/// the sums of its shard (receive buffer 0). Tokens in no range keep their contents.
Reduction scatterRangesSum(const Shards& shards, const RangesOfMembers& ranges, std::size_t member);

}  // namespace seqpar
