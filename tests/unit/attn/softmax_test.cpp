// Every algorithm of softmax attention with every feature, on ranks that are threads, against the definition in fp64.

#include <array>

#include "attn/block/bf16_kernels.h"
#include "attn/plan/registry.h"
#include "common/covering.h"
#include "softmax_features.h"
#include "softmax_ranks.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)
using seqpar::test::covers;

TEST_CASE("softmax attention: every algorithm with every feature", "[softmax]") {
  constexpr std::array kRankCounts{1, 2, 3, 4, 6, 8};
  const auto which = GENERATE_COPY(range(size_t{0}, kRankCounts.size()));
  const int ranks = kRankCounts[which];
  const RankThreads group(ranks);
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    const bool local = row.id == seqparAttnLocal;
    if (!row.softmax || (local && ranks > 1)) continue;
    for (size_t number = 0; number < features().size(); ++number) {
      if (!local && !covers(static_cast<size_t>(row.id), number, which, kRankCounts.size())) continue;
      const Feature& feature = features()[number];
      SoftmaxSpec spec = drawSpec(random, ranks);
      const std::string name = feature.name;
      if (name == "lengths") spec.tokensOfRanks.resize(static_cast<size_t>(ranks));
      feature.apply(spec, random);
      spec.algorithm = row.id;
      RunOptions options;
      options.onStream = random() % 2 == 0;
      options.ownWorkspace = random() % 2 == 0;
      options.rounds = 1 + static_cast<int>(random() % 2);
      CAPTURE(ranks, row.name, feature.name, options.onStream, options.rounds, spec.text());
      const auto said = runCase(SoftmaxCase(spec, random()), &group, options);
      const auto refusal = refusalOf(row, spec, group[0]);
      if (refusal.empty()) {
        CHECK(said == "");
      } else {  // an error text that names the supported ones
        CHECK_THAT(said, Catch::Contains(row.name + std::string("), which ") + refusal + "; expected one that can: "));
      }
    }
  }
}

/// Whether `got` equals the expected values, rounded to the type once, up to the error of fp32 sums. On processors with
/// bf16 kernels the weights p of bf16 tensors are rounded too: a sum of terms p x is off by at most epsilon times the
/// sum of the terms' sizes.
std::string roundedOnce(const std::vector<double>& got, const Numbers& expected, seqparDataType_t type) {
  const bool roundsWeights = type == seqparBfloat16 && seqpar::attn::bestBf16Kernels() != nullptr;
  const double ofSize = 0x1p-16 + (roundsWeights ? epsilonOf(type) : 0);
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = epsilonOf(type) * std::abs(expected.value[i]) + ofSize * expected.size[i] + 0x1p-24;
    if (!(std::abs(got[i] - expected.value[i]) <= bound)) {
      return std::to_string(got[i]) + ", expected " + std::to_string(expected.value[i]);
    }
  }
  return "";
}

TEST_CASE("softmax attention: partial results are sent in fp32 for any tensor type", "[softmax]") {
  const int ranks = GENERATE(2, 4, 6);
  const RankThreads group(ranks);
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || row.id == seqparAttnLocal) continue;
    for (int inner = 0; inner <= ranks; ++inner) {
      if (inner != 0 && ranks % inner != 0) continue;
      SoftmaxSpec s = drawSpec(random, ranks);
      s.algorithm = row.id;
      s.inner = inner;
      s.mask = seqparAttnCausal;
      s.type = random() % 2 == 0 ? seqparFloat16 : seqparBfloat16;
      s.heads = ranks;
      s.kvHeads = 1;
      s.tokens = 16 * ranks;
      CAPTURE(ranks, row.name, s.text());
      if (!refusalOf(row, s, group[0]).empty()) continue;
      const SoftmaxCase c(s, random());
      const SoftmaxAnswer answer(c);
      SoftmaxResult result(c, NAN);
      REQUIRE(runOn(c, &group, {}, result) == "");
      CHECK(roundedOnce(result.out, answer.out, s.type) == "");
      CHECK(roundedOnce(result.dv, answer.dv, s.type) == "");  // needs nothing that was rounded before
    }
  }
}

TEST_CASE("softmax attention: more tokens than a tile of the host kernel", "[softmax]") {
  const int ranks = GENERATE(1, 3);
  const RankThreads group(ranks);
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const int algorithm : {seqparAttnRing, seqparAttnUlysses}) {
    for (const int shape : {0, 1, 2, 3}) {
      if (!covers(algorithm == seqparAttnRing, static_cast<size_t>(shape), ranks == 3, 2)) continue;
      SoftmaxSpec s;
      s.tokens = draw(random, 1030, 1500);
      s.heads = s.kvHeads = ranks;
      if (shape == 3) s.heads *= 2;
      s.headDim = s.valueDim = 3;
      s.algorithm = algorithm;
      s.mask = shape == 0 ? seqparAttnFull : seqparAttnCausal;
      if (shape == 2) s.windowLeft = draw(random, 100, 700);
      if (shape == 1) s.type = seqparBfloat16;
      CAPTURE(ranks, s.text());
      CHECK(runCase(SoftmaxCase(s, random()), &group) == "");
    }
  }
}

TEST_CASE("softmax attention: rings whose backward starts and ends with half shards", "[softmax]") {
  const int ranks = GENERATE(2, 4);
  const RankThreads group(ranks);
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const int algorithm : {seqparAttnRing, seqparAttnZigzag, seqparAttnStriped, seqparAttnBurst, seqparAttnRingPassQ,
                              seqparAttnDoubleRing, seqparAttnRingSelfAttention, seqparAttnUsp, seqparAttnStarTrail}) {
    for (const int shape : {0, 1, 2}) {
      if (!covers(static_cast<size_t>(algorithm), static_cast<size_t>(shape), ranks == 4, 2)) continue;
      SoftmaxSpec s;
      s.tokens = draw(random, 200 * ranks, 260 * ranks);
      s.heads = s.kvHeads = 2;
      s.headDim = s.valueDim = 3;
      s.algorithm = algorithm;
      s.mask = shape == 0 ? seqparAttnFull : seqparAttnCausal;
      if (shape == 2) s.windowLeft = draw(random, 10, 300);
      CAPTURE(ranks, s.text());
      CHECK(runCase(SoftmaxCase(s, random()), &group) == "");
    }
  }
}

TEST_CASE("softmax attention: groups of ranks of every size", "[softmax]") {
  const int ranks = GENERATE(4, 6, 8);
  const RankThreads group(ranks);
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const int algorithm : {seqparAttnUsp, seqparAttnMesh, seqparAttnAttention2d}) {
    for (int inner = 1; inner <= ranks; ++inner) {
      if (ranks % inner != 0) continue;
      for (const int outside : {0, 1}) {
        SoftmaxSpec s = drawSpec(random, ranks);  // also heads that groups do not divide, and fewer than ranks
        s.kvHeads = draw(random, 1, 3);
        s.heads = s.kvHeads * draw(random, 1, 3);
        s.algorithm = algorithm;
        s.inner = inner;
        s.ulyssesOutside = outside;
        s.mask = static_cast<int>(random() % 2);
        s.sinks = random() % 2 == 0;
        CAPTURE(ranks, s.text());
        CHECK(runCase(SoftmaxCase(s, random()), &group) == "");
      }
    }
  }
}

}  // namespace
