// mask_plan_perf: what plans for GPUs make of a mask: calls of block kernels, and received keys, with the keys that a
// rank's queries see in the order of their positions, and with all keys, rank after rank; and the tokens that rings
// send. One process, without a communicator or GPU. Last, the time to create a plan with many slices.
//
//     mask_plan_perf [TOKENS [RANKS...]]          default: 65536 tokens, 2, 8 and 64 ranks
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "attn/block/cuda_steps.h"
#include "attn/problem/mask.h"
#include "attn/problem/needed.h"
#include "attn/softmax/key_gather.h"
#include "mask_examples.h"
#include "mask_problem.h"

namespace {

using namespace seqpar::attn;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::perf;  // NOLINT(google-build-using-namespace)

double milliseconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
}

struct Calls {
  size_t forward = 0, backward = 0;  ///< of the rank with the most
};

/// The calls of block kernels for these keys.
void count(const Problem& problem, const std::vector<TokenRun>& keys, bool improved, Calls& most) {
  const auto seen = rectanglesOf(problem.queries.runsOf(problem.rank()), keys, problem.visibility());
  const auto split = splitDiagonals(seen, kLeastSplitRows);
  BlockLimits limits;
  limits.cudnn = limits.changing = true;
  most.backward = std::max(most.backward, stepsOf(improved ? forBackward(seen) : split, limits).size());
  limits.sharedColumns = limits.join = improved;
  most.forward = std::max(most.forward, stepsOf(improved ? forForward(seen, limits) : split, limits).size());
}

/// The tokens of a shard that a ring sends, as a share of all: the needed ranges, and one range that contains them.
struct RingShares {
  double ranges = 0, hull = 0;
};

RingShares ringShares(const Problem& problem) {
  RingShares shares;
  for (const auto& ranges : problem.seenByOthers(false)) {
    if (ranges.empty()) continue;
    shares.ranges += static_cast<double>(tokensOf(ranges));
    shares.hull += static_cast<double>(ranges.back().end() - ranges.front().first);
  }
  const auto tokens = static_cast<double>(problem.keys.tokens());
  return {shares.ranges / tokens, shares.hull / tokens};
}

void row(const char* name, const Slices& slices, int64_t tokens, int ranks) {
  Problem problem = solvedProblem("mask_plan_perf", slices, tokens, ranks);
  const auto begin = std::chrono::steady_clock::now();
  const auto& gathered = *gatheredKeys(problem);
  const double planning = milliseconds(begin);
  Calls before, after;
  for (problem.info.rank = 0; problem.info.rank < ranks; ++problem.info.rank) {
    count(problem, gathered.all, false, before);
    count(problem, gathered.runsOf(problem.rank()), true, after);
  }
  const double all = static_cast<double>(tokens) * (ranks - 1) / ranks;
  const auto ring = ringShares(problem);
  std::printf("| %-15s | %6zu | %5d | %8.2f | %17zu | %17zu | %18zu | %18zu | %15.2f | %12.2f | %8.2f |\n", name,
              slices.size(), ranks, gathered.meanReceived / all, before.forward, after.forward, before.backward,
              after.backward, ring.hull, ring.ranges, planning);
}

/// The time of seqparAttnPlanCreate() on one rank, the median of some.
void creation(int64_t tokens, int64_t documents) {
  Slices slices;
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t begin = tokens * i / documents, end = tokens * (i + 1) / documents;
    slices.push_back(causal(begin, end, begin, end));
  }
  auto desc = descOf(slices, tokens);
  desc.headDim = 64;
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    seqparAttnPlan_t plan = nullptr;
    if (seqparAttnPlanCreate(&plan, &desc, nullptr) != seqparSuccess) {
      throw std::runtime_error(seqparAttnGetLastError());
    }
    times.push_back(milliseconds(begin));
    seqparAttnPlanDestroy(plan);
  }
  std::sort(times.begin(), times.end());
  std::printf("%6zu slices: seqparAttnPlanCreate takes %.2f ms\n", slices.size(), times[2]);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t tokens = argc > 1 ? tokensOf(argv[1]) : 65536;
    std::vector<int> ranks;
    for (int i = 2; i < argc; ++i) ranks.push_back(ranksOf(argv[i]));
    if (ranks.empty()) ranks = {2, 8, 64};
    std::printf(
        "%lld tokens, solved layouts. Keys: received keys over those of an all-gather. Calls: of the rank with the "
        "most, all keys in rank order -> the needed keys in the order of their positions. Ring: sent tokens of "
        "shards.\n\n"
        "| mask            | slices | ranks | keys     | forward, all keys | forward, needed   | backward, all keys "
        "| backward, needed   | ring, one range | ring, ranges | plan, ms "
        "|\n|---|---|---|---|---|---|---|---|---|---|---|\n",
        static_cast<long long>(tokens));
    for (const auto& [name, slices] : examples(tokens)) {
      for (const int of : ranks) row(name, slices, tokens, of);
    }
    std::printf("\n");
    for (const int64_t documents : {100, 1000, 10000}) creation(tokens, documents);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mask_plan_perf: %s\n", error.what());
    return 1;
  }
}
