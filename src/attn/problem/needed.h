// The keys that a rank's queries see, as ranges of tokens.
#pragma once

#include <span>
#include <vector>

#include "attn/problem/problem.h"

namespace seqpar::attn {

/// The columns of the rectangles: disjoint ranges, ascending, none empty and none next to another.
std::vector<TokenRange> columnsOf(std::span<const Rectangle> rectangles);

/// The tokens in both lists of ranges, which ascend and do not overlap.
int64_t commonTokens(std::span<const TokenRange> some, std::span<const TokenRange> others);

int64_t tokensOf(std::span<const TokenRange> ranges);

/// The runs of a shard restricted to ascending ranges of it, one after the other: `local` counts their tokens.
std::vector<TokenRun> runsOf(std::span<const TokenRun> shard, std::span<const TokenRange> ranges);

/// The tokens of each of the shards `of` that have scores with other ranks' shards `with`: ascending ranges. They are
/// few, because gaps of few tokens are included. `ofQueries`: the shards `of` are the queries. Shards of many runs
/// count whole.
std::vector<std::vector<TokenRange>> seenTokens(std::span<const std::vector<TokenRun>> of,
                                                std::span<const std::vector<TokenRun>> with,
                                                const Visibility& visibility, bool ofQueries);

/// The keys of all ranks that a rank's queries see, as tokens of Sharding::allRuns().
std::vector<TokenRange> keysNeeded(const Problem& problem, int rank);

/// The keys of other ranks that a rank's queries see.
int64_t keysOfOthersNeeded(const Problem& problem, int rank);

}  // namespace seqpar::attn
