// The C calls of seqpar/attn_layout.h.
#include "seqpar/attn_layout.h"

#include <algorithm>
#include <memory>

#include "attn/boundary.h"
#include "attn/problem/mask.h"
#include "attn/problem/problem.h"
#include "attn/problem/solve.h"
#include "base/arguments.h"
#include "base/checked.h"
#include "base/versioned.h"

namespace seqpar::attn {
namespace {

/// The problem without its layout, on one rank.
Problem readMaskOnly(const char* call, const seqparAttnDesc_t* desc) {
  auto d = readVersioned(call, "desc", desc, seqparAttnDesc_t SEQPAR_ATTN_DESC_INITIALIZER);
  d.layout = d.kvLayout = nullptr;
  d.tokensOfRanks = nullptr;
  d.kernel = nullptr;
  d.inner = 0;
  d.size = sizeof(d);
  d.version = SEQPAR_VERSION_CODE;
  auto problem = readProblem(call, &d, nullptr);
  if (!problem.softmax()) {
    fail(seqparInvalidUsage, call, ": desc->family is ", d.family, ", expected 0 (softmax attention)");
  }
  return problem;
}

std::vector<Interval> intervalsOf(std::span<const TokenRun> runs) {
  std::vector<Interval> intervals;
  for (const auto& run : runs) {
    const int64_t blocks = run.stride == 1 ? 1 : run.length, length = run.stride == 1 ? run.length : 1;
    for (int64_t i = 0; i < blocks; ++i) {
      intervals.push_back({run.position + i * run.stride, run.position + i * run.stride + length});
    }
  }
  return intervals;
}

}  // namespace
}  // namespace seqpar::attn

using namespace seqpar;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

seqparResult_t seqparAttnSolveLayout(const seqparAttnDesc_t* desc, int ranks, const seqparAttnSolve_t* params,
                                     int64_t* bounds, int* owners, int64_t* pieces) {
  constexpr const char* kCall = "seqparAttnSolveLayout";
  return guard(kCall, [&] {
    constexpr int kMostRanks = 1 << 20;
    const auto problem = readMaskOnly(kCall, desc);
    if (ranks < 1 || ranks > kMostRanks) {
      fail(seqparInvalidArgument, kCall, ": ranks is ", ranks, ", expected 1 to ", kMostRanks);
    }
    seqparAttnSolve_t solve = SEQPAR_ATTN_SOLVE_INITIALIZER;
    if (params != nullptr) solve = readVersioned(kCall, "params", params, solve);
    if (solve.granule < 1) {
      fail(seqparInvalidArgument, kCall, ": params->granule is ", solve.granule, ", expected at least 1");
    }
    requirePointer(kCall, "bounds", bounds);
    requirePointer(kCall, "owners", owners);
    requirePointer(kCall, "pieces", pieces);
    const auto& d = problem.desc;
    const auto found = solveLayout(*maskOf(d, problem.cuSeqlens, problem.slices), d.tokens, ranks, solve.granule,
                                   !problem.crossAttention());
    *pieces = std::max<int64_t>(1, static_cast<int64_t>(found.size()));
    bounds[0] = owners[0] = 0;
    bounds[*pieces] = d.tokens;
    for (size_t i = 0; i < found.size(); ++i) {
      bounds[i] = found[i].tokens.begin;
      owners[i] = found[i].owner;
    }
  });
}

seqparResult_t seqparAttnLayoutLoad(const seqparAttnDesc_t* desc, const seqparLayout_t* layout,
                                    seqparAttnLoad_t* loads) {
  constexpr const char* kCall = "seqparAttnLayoutLoad";
  return guard(kCall, [&] {
    const auto problem = readMaskOnly(kCall, desc);
    const Sharding shards(kCall, readVersioned(kCall, "layout", layout, seqparLayout_t SEQPAR_LAYOUT_INITIALIZER));
    if (shards.tokens() != problem.desc.tokens) {
      fail(seqparInvalidArgument, kCall, ": layout->tokens is ", shards.tokens(), ", expected ", problem.desc.tokens,
           ", the tokens of desc");
    }
    requirePointer(kCall, "loads", loads);
    Visibility visibility;
    visibility.slices = maskOf(problem.desc, problem.cuSeqlens, problem.slices);
    const std::vector<TokenRun> keys{{0, 0, problem.crossAttention() ? problem.desc.kvTokens : problem.desc.tokens, 1}};
    for (int rank = 0; rank < shards.ranks(); ++rank) {
      const auto runs = shards.runsOf(rank);
      const auto rectangles = rectanglesOf(runs, keys, visibility);
      const auto own = intervalsOf(runs);
      const auto seen = keysSeen(*visibility.slices, own);
      const auto keysOfRank = problem.crossAttention() ? std::vector<Interval>{} : own;
      loads[rank] = {shards.tokensOf(rank), scoresOf(rectangles), countOutside(seen, keysOfRank),
                     static_cast<int64_t>(rectangles.size())};
    }
  });
}
