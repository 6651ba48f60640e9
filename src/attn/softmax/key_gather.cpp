#include "attn/softmax/key_gather.h"

#include <algorithm>

#include "attn/boundary.h"
#include "attn/problem/needed.h"
#include "attn/softmax/base.h"

namespace seqpar::attn {
namespace {

constexpr const char* kCaller = "attention plan";

/// CTAs of a transfer next to block kernels: each takes an SM from them, also while it waits for the peer's transfer.
constexpr int kOverlappedCtas = 16;

/// Parts of shards that a rank may send and receive. A graph of a GPU holds exchanges of at most 256 regions, and a sum
/// may have twice as many regions as parts. Masks with slices save more than graphs do.
int64_t mostParts(const Problem& problem) {
  return problem.onDevice() && !problem.slices ? 120 : 4096;
}

/// Some keys in the order of their positions.
struct OrderedKeys {
  std::vector<TokenRange> ranges;  ///< of allRuns()
  std::vector<TokenRun> runs;      ///< with `local` in the gathered tensor
};

OrderedKeys inOrder(std::span<const TokenRange> needed, std::span<const TokenRun> all) {
  std::vector<TokenRun> parts;
  auto range = needed.begin();
  for (const auto& run : all) {
    while (range != needed.end() && range->end() <= run.local) ++range;
    for (auto at = range; at != needed.end() && at->first < run.local + run.length; ++at) {
      const int64_t first = std::max(at->first, run.local), end = std::min(at->end(), run.local + run.length);
      parts.push_back({first, run.position + (first - run.local) * run.stride, end - first, run.stride});
    }
  }
  std::sort(parts.begin(), parts.end(), [](const TokenRun& a, const TokenRun& b) { return a.position < b.position; });
  OrderedKeys out;
  int64_t local = 0;
  for (const auto& part : parts) {
    const bool continues = !out.ranges.empty() && out.ranges.back().end() == part.local;
    if (continues) {
      out.ranges.back().count += part.length;
    } else {
      out.ranges.push_back({part.local, part.length});
    }
    auto* const before = out.runs.empty() ? nullptr : &out.runs.back();
    if (before != nullptr && before->stride == part.stride &&
        before->position + before->length * before->stride == part.position) {
      before->length += part.length;
    } else {
      out.runs.push_back({local, part.position, part.length, part.stride});
    }
    local += part.length;
  }
  return out;
}

/// Whether a rank sends and receives few enough parts of shards.
bool fewParts(const Problem& problem, const std::vector<std::vector<TokenRange>>& ranges) {
  const auto ranks = static_cast<size_t>(problem.ranks());
  std::vector<int64_t> firsts{0}, parts(ranks);
  for (int rank = 0; rank < problem.ranks(); ++rank) firsts.push_back(firsts.back() + problem.keys.tokensOf(rank));
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const auto& range : ranges[rank]) {
      auto owner =
          static_cast<size_t>(std::upper_bound(firsts.begin(), firsts.end(), range.first) - firsts.begin()) - 1;
      for (; owner < ranks && firsts[owner] < range.end(); ++owner) {
        if (firsts[owner + 1] == firsts[owner]) continue;
        ++parts[rank];
        ++parts[owner];
      }
    }
  }
  return *std::max_element(parts.begin(), parts.end()) <= mostParts(problem);
}

GatheredKeys computeGatheredKeys(const Problem& problem) {
  const auto all = problem.keys.allRuns();
  const auto visibility = problem.visibility();
  const int ranks = problem.ranks();
  GatheredKeys some, whole;
  double sent = 0;
  bool onceOrdered = true;
  size_t most = 0, mostOrdered = 0;  // rectangles of a rank
  TokenRange own;
  for (int rank = 0; rank < ranks; ++rank) {
    own = {own.end(), problem.keys.tokensOf(rank)};
    const auto queries = problem.queries.runsOf(rank);
    const auto seen = rectanglesOf(queries, all, visibility);
    const auto needed = columnsOf(seen);
    auto ordered = inOrder(needed, all);
    const auto seenInOrder = rectanglesOf(queries, ordered.runs, visibility);
    whole.once = whole.once && singleShares(problem, seen);
    onceOrdered = onceOrdered && singleShares(problem, seenInOrder);
    most = std::max(most, seen.size());
    mostOrdered = std::max(mostOrdered, seenInOrder.size());
    const int64_t received = attn::tokensOf(needed) - commonTokens(needed, {&own, 1});
    some.mostReceived = std::max(some.mostReceived, received);
    sent += static_cast<double>(received);
    whole.mostReceived = std::max(whole.mostReceived, problem.keys.tokens() - own.count);
    some.ranges.push_back(std::move(ordered.ranges));
  }
  some.once = onceOrdered;
  some.meanReceived = sent / ranks;
  whole.meanReceived = static_cast<double>(problem.keys.tokens()) * (ranks - 1) / ranks;
  constexpr double kNearlyAll = 0.9;
  const bool fewer = some.meanReceived <= kNearlyAll * whole.meanReceived;
  const bool fewerCalls = problem.onDevice() && mostOrdered < most;  // hosts compute any rectangles in one call
  GatheredKeys& chosen = ranks > 1 && (fewer || fewerCalls) && fewParts(problem, some.ranges) ? some : whole;
  chosen.all = all;
  return std::move(chosen);
}

}  // namespace

int64_t GatheredKeys::tokensOf(const Problem& problem, int rank) const {
  return ranges.empty() ? problem.keys.tokens() : attn::tokensOf(ranges[static_cast<size_t>(rank)]);
}

std::vector<TokenRun> GatheredKeys::runsOf(int rank) const {
  if (ranges.empty()) return all;
  auto mine = ranges[static_cast<size_t>(rank)];
  std::sort(mine.begin(), mine.end(), [](const TokenRange& a, const TokenRange& b) { return a.first < b.first; });
  return inOrder(mine, all).runs;
}

std::shared_ptr<const GatheredKeys> gatheredKeys(const Problem& problem) {
  auto& known = problem.table->gathered(problem.onDevice());
  if (!known) known = std::make_shared<const GatheredKeys>(computeGatheredKeys(problem));
  return known;
}

KeyGather::KeyGather(const Problem& problem) : problem_(problem), keys_(gatheredKeys(problem)) {
  for (int rank = 0; rank < problem.rank(); ++rank) firstOwn_ += problem.keys.tokensOf(rank);
  if (keys_->ranges.empty()) return;
  std::vector<Rectangle> seen;  // of no rows: the union of all ranks' columns
  for (const auto& ranges : keys_->ranges) {
    for (const auto& range : ranges) seen.push_back({0, 0, range.first, range.count});
  }
  const TokenRange own{firstOwn_, problem.kvTokens()};
  leavesSome_ = commonTokens(columnsOf(seen), {&own, 1}) < own.count;
}

seqparShards_t KeyGather::shardsOf(seqparDataType_t type, int64_t inner, Next next) const {
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.dataType = type;
  shards.outer = problem_.desc.batch;
  shards.inner = inner;
  shards.tokensOfMembers = problem_.keys.lengths().data();
  if (next == Next::Computation) shards.ctas = kOverlappedCtas;
  return shards;
}

void KeyGather::open(seqparDataType_t type, int64_t inner) {
  if (keys_->ranges.empty()) return;
  std::vector<int64_t> counts;
  std::vector<seqparRange_t> ranges;
  for (const auto& mine : keys_->ranges) {
    counts.push_back(static_cast<int64_t>(mine.size()));
    for (const auto& range : mine) ranges.push_back({range.first, range.count});
  }
  for (const Next next : {Next::Nothing, Next::Computation}) {
    auto& made = plans_[{type, inner, next}];
    if (made) continue;
    const auto shards = shardsOf(type, inner, next);
    seqparRangesPlan_t plan = nullptr;
    require(seqparRangesPlanCreate(&plan, &shards, counts.data(), ranges.data(), problem_.comm), kCaller,
            problem_.comm);
    made.reset(plan);
  }
}

seqparRangesPlan_t KeyGather::planFor(const Tensor& tensor, Next next) const {
  return plans_.at({tensor.type, tensor.heads * tensor.dim, next}).get();
}

void KeyGather::gather(const Tensor& shard, const Tensor& gathered, Next next, void* stream) const {
  const auto shards = shardsOf(shard.type, shard.heads * shard.dim, next);
  require(keys_->ranges.empty() ? seqparAllGather(shard.data, gathered.data, &shards, problem_.comm, stream)
                                : seqparGatherRanges(planFor(shard, next), shard.data, gathered.data, stream),
          kCaller, problem_.comm);
}

void KeyGather::scatter(const Tensor& gathered, const Tensor& shard, Next next, void* stream) const {
  const auto shards = shardsOf(shard.type, shard.heads * shard.dim, next);
  require(keys_->ranges.empty() ? seqparReduceScatter(gathered.data, shard.data, &shards, problem_.comm, stream)
                                : seqparScatterRanges(planFor(shard, next), gathered.data, shard.data, stream),
          kCaller, problem_.comm);
}

}  // namespace seqpar::attn
