#include "attn/problem/needed.h"

#include <algorithm>

namespace seqpar::attn {

std::vector<TokenRange> columnsOf(std::span<const Rectangle> rectangles) {
  std::vector<TokenRange> all;
  all.reserve(rectangles.size());
  for (const auto& r : rectangles) all.push_back({r.column, r.columns});
  std::sort(all.begin(), all.end(), [](const TokenRange& a, const TokenRange& b) { return a.first < b.first; });
  std::vector<TokenRange> joined;
  for (const auto& range : all) {
    if (range.count == 0) continue;
    if (joined.empty() || joined.back().end() < range.first) {
      joined.push_back(range);
    } else {
      joined.back() = joined.back().with(range);
    }
  }
  return joined;
}

int64_t commonTokens(std::span<const TokenRange> some, std::span<const TokenRange> others) {
  int64_t common = 0;
  for (size_t i = 0, j = 0; i < some.size() && j < others.size();) {
    common += std::max<int64_t>(0, std::min(some[i].end(), others[j].end()) - std::max(some[i].first, others[j].first));
    some[i].end() < others[j].end() ? ++i : ++j;
  }
  return common;
}

int64_t tokensOf(std::span<const TokenRange> ranges) {
  int64_t tokens = 0;
  for (const auto& range : ranges) tokens += range.count;
  return tokens;
}

std::vector<TokenRange> keysNeeded(const Problem& problem, int rank) {
  return columnsOf(rectanglesOf(problem.queries.runsOf(rank), problem.keys.allRuns(), problem.visibility()));
}

int64_t keysOfOthersNeeded(const Problem& problem, int rank) {
  const auto needed = keysNeeded(problem, rank);
  TokenRange own{0, problem.keys.tokensOf(rank)};
  for (int other = 0; other < rank; ++other) own.first += problem.keys.tokensOf(other);
  return tokensOf(needed) - commonTokens(needed, {&own, 1});
}

}  // namespace seqpar::attn
