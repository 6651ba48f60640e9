#include "attn/problem/needed.h"

#include <algorithm>

namespace seqpar::attn {

namespace {

constexpr size_t kMostRuns = 256;   ///< of shards with ranges
constexpr size_t kMostRanges = 16;  ///< of a shard

int64_t tokensOfRuns(std::span<const TokenRun> runs) {
  int64_t tokens = 0;
  for (const auto& run : runs) tokens += run.length;
  return tokens;
}

/// Disjoint, ascending, none empty and none next to another.
std::vector<TokenRange> joined(std::vector<TokenRange> all) {
  std::sort(all.begin(), all.end(), [](const TokenRange& a, const TokenRange& b) { return a.first < b.first; });
  std::vector<TokenRange> some;
  for (const auto& range : all) {
    if (range.count == 0) continue;
    if (some.empty() || some.back().end() < range.first) {
      some.push_back(range);
    } else {
      some.back() = some.back().with(range);
    }
  }
  return some;
}

/// Includes the smallest gaps, as the copy of several ranges must be worth its time.
std::vector<TokenRange> fewOf(std::vector<TokenRange> ranges) {
  if (ranges.size() < 2) return ranges;
  const int64_t hull = ranges.back().end() - ranges.front().first;
  if (8 * tokensOf(ranges) > 7 * hull) return {{ranges.front().first, hull}};
  while (ranges.size() > kMostRanges) {
    size_t least = 1;
    const auto gap = [&](size_t i) { return ranges[i].first - ranges[i - 1].end(); };
    for (size_t i = 2; i < ranges.size(); ++i) least = gap(i) < gap(least) ? i : least;
    ranges[least - 1] = ranges[least - 1].with(ranges[least]);
    ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(least));
  }
  return ranges;
}

}  // namespace

std::vector<TokenRange> columnsOf(std::span<const Rectangle> rectangles) {
  std::vector<TokenRange> all;
  all.reserve(rectangles.size());
  for (const auto& r : rectangles) all.push_back({r.column, r.columns});
  return joined(std::move(all));
}

std::vector<TokenRun> runsOf(std::span<const TokenRun> shard, std::span<const TokenRange> ranges) {
  std::vector<TokenRun> parts;
  int64_t before = 0;
  for (const auto& range : ranges) {
    for (const auto& run : shard) {
      const int64_t first = std::max(range.first, run.local), end = std::min(range.end(), run.local + run.length);
      if (first >= end) continue;
      parts.push_back(
          {before + first - range.first, run.position + (first - run.local) * run.stride, end - first, run.stride});
    }
    before += range.count;
  }
  return parts;
}

std::vector<std::vector<TokenRange>> seenTokens(std::span<const std::vector<TokenRun>> of,
                                                std::span<const std::vector<TokenRun>> with,
                                                const Visibility& visibility, bool ofQueries) {
  std::vector<std::vector<TokenRange>> seen(of.size());
  for (size_t rank = 0; rank < of.size(); ++rank) {
    if (of[rank].size() > kMostRuns) {
      seen[rank] = {{0, tokensOfRuns(of[rank])}};
      continue;
    }
    std::vector<TokenRange> all;
    for (size_t other = 0; other < with.size(); ++other) {
      if (other == rank) continue;
      const auto rectangles =
          ofQueries ? rectanglesOf(of[rank], with[other], visibility) : rectanglesOf(with[other], of[rank], visibility);
      for (const auto& r : rectangles)
        all.push_back(ofQueries ? TokenRange{r.row, r.rows} : TokenRange{r.column, r.columns});
      constexpr size_t kMany = 4096;
      if (all.size() > kMany) all = joined(std::move(all));
    }
    seen[rank] = fewOf(joined(std::move(all)));
  }
  return seen;
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
