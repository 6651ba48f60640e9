// gpu_packings [Catch's options]: plans for many packings on one GPU: the number of cuDNN plans that they build, and
// the memory that they allocate. Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "attn/block/cudnn.h"
#include "gpu/support/placed_ranks.h"
#include "unit/attn/softmax_ranks.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

PlacedRun placed;

/// Bounds of documents with lengths of a lognormal distribution.
std::vector<int64_t> packing(std::mt19937_64& random, int64_t tokens) {
  std::lognormal_distribution<double> length(std::log(400.0), 1.0);
  std::vector<int64_t> bounds{0};
  while (bounds.back() < tokens) {
    bounds.push_back(std::min(tokens, bounds.back() + std::max<int64_t>(1, std::llround(length(random)))));
  }
  return bounds;
}

/// What the cuDNN plans of a packing on one rank depend on: documents of one token are not given to cuDNN.
std::tuple<uint64_t, uint64_t> planOf(const std::vector<int64_t>& bounds) {
  uint64_t documents = 8, longest = 512;
  uint64_t count = 0;
  for (size_t i = 1; i < bounds.size(); ++i) {
    const auto length = static_cast<uint64_t>(bounds[i] - bounds[i - 1]);
    count += length > 1 ? 1 : 0;
    longest = std::max(longest, length);
  }
  return {std::bit_ceil(std::max(documents, count)), std::bit_ceil(longest)};
}

size_t freeMemory() {
  size_t free = 0, all = 0;
  seqpar::test::expectCuda(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return free;
}

TEST_CASE("few cuDNN plans serve all packings") {
  if (!seqpar::attn::Sdpa::problem().empty()) return;
  PlacedRanks all(placed);
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  constexpr int64_t kTokens = 4096;
  constexpr int kPackings = 1000;
  CAPTURE(seed);
  void* workspace = nullptr;
  constexpr size_t kWorkspace = size_t{1} << 28;
  seqpar::test::expectCuda(cudaMalloc(&workspace, kWorkspace), "cudaMalloc");
  std::set<std::tuple<uint64_t, uint64_t>> plans;
  const int64_t before = seqpar::attn::Sdpa::built();
  size_t free = 0;
  for (int i = 0; i < kPackings; ++i) {
    const auto bounds = packing(random, kTokens);
    const bool known = !plans.insert(planOf(bounds)).second;
    const auto built = seqpar::attn::Sdpa::built();
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.tokens = kTokens;
    desc.heads = 4;
    desc.kvHeads = 2;
    desc.headDim = desc.valueDim = 64;
    desc.dataType = seqparBfloat16;
    desc.mask = seqparAttnCausal;
    desc.training = 1;
    desc.sequences = static_cast<int64_t>(bounds.size()) - 1;
    desc.cuSeqlens = bounds.data();
    seqparAttnPlan_t plan = nullptr;
    size_t bytes = 0;
    REQUIRE(seqparAttnPlanCreate(&plan, &desc, all.group()[0]) == seqparSuccess);
    REQUIRE(seqparAttnPlanWorkspaceSize(plan, &bytes) == seqparSuccess);
    REQUIRE(bytes <= kWorkspace);
    REQUIRE(seqparAttnPlanPrepare(plan, workspace, kWorkspace) == seqparSuccess);
    REQUIRE(seqparAttnPlanDestroy(plan) == seqparSuccess);
    // One plan forward, one backward.
    REQUIRE(seqpar::attn::Sdpa::built() - built <= (known ? 0 : 2));
    if (!known) free = freeMemory();
    if (known && i + 1 == kPackings) CHECK(freeMemory() == free);
  }
  std::printf("%d packings, %d sizes, %lld cuDNN plans\n", kPackings, static_cast<int>(plans.size()),
              static_cast<long long>(seqpar::attn::Sdpa::built() - before));
  CHECK(seqpar::attn::Sdpa::built() > before);
  seqpar::test::expectCuda(cudaFree(workspace), "cudaFree");
}

TEST_CASE("attention with random packings equals its definition") {
  PlacedRanks all(placed);
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 4; ++i) {
    SoftmaxSpec spec;
    spec.tokens = 1024 + static_cast<int64_t>(random() % 200);
    spec.heads = 4;
    spec.kvHeads = i % 2 == 0 ? 2 : 4;
    spec.headDim = spec.valueDim = 64;
    spec.type = seqparBfloat16;
    spec.mask = seqparAttnCausal;
    if (i == 3) spec.windowLeft = 150;
    spec.bounds = packing(random, spec.tokens);
    spec.algorithm = seqparAttnLocal;
    RunOptions options;
    options.rounds = 2;
    options.placement = all.placement();
    CAPTURE(seed, i, spec.text());
    CHECK(runCase(SoftmaxCase(spec, random()), &all.group(), options) == "");
  }
}

}  // namespace

int main(int count, char** words) {
  return runPlaced(count, words, placed);
}
