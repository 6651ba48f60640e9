// Masks as slices: which are accepted, and which scores plans compute from them.
#include "attn/block/slices.h"

#include "attn/plan/registry.h"
#include "attn/problem/mask.h"
#include "small_desc.h"
#include "softmax_features.h"
#include "softmax_ranks.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)
using seqpar::attn::Rectangle;

seqparAttnDesc_t descOf(const std::vector<seqparAttnSlice_t>& slices, int64_t tokens) {
  auto desc = smallDesc();
  desc.tokens = tokens;
  desc.slices = static_cast<int64_t>(slices.size());
  desc.slice = slices.data();
  return desc;
}

std::string createError(const seqparAttnDesc_t& desc, seqparResult_t expected = seqparInvalidArgument) {
  seqparAttnPlan_t plan = nullptr;
  const auto result = seqparAttnPlanCreate(&plan, &desc, nullptr);
  if (result == seqparSuccess) seqparAttnPlanDestroy(plan);
  CHECK(result == expected);
  return result == seqparSuccess ? "" : seqparAttnGetLastError();
}

TEST_CASE("slices are accepted if and only if no score is in two of them", "[slices]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  int shared = 0;
  for (int round = 0; round < 600; ++round) {
    const int64_t tokens = draw(random, 1, 24);
    auto slices = drawSlices(random, tokens, tokens);
    if (random() % 2 == 0) {
      for (const auto& more : drawSlices(random, tokens, tokens, 6)) slices.push_back(more);
      std::shuffle(slices.begin(), slices.end(), random);
    }
    bool disjoint = true;
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < tokens; ++j) {
        disjoint = disjoint &&
                   std::count_if(slices.begin(), slices.end(), [&](const auto& s) { return contains(s, i, j); }) <= 1;
      }
    }
    shared += disjoint ? 0 : 1;
    CAPTURE(round, tokens);
    const auto said = createError(descOf(slices, tokens), disjoint ? seqparSuccess : seqparInvalidArgument);
    if (disjoint) continue;
    size_t first = 0, second = 0;
    int64_t row = -1, column = -1;
    REQUIRE(
        std::sscanf(said.c_str(),
                    "seqparAttnPlanCreate: desc->slice[%zu] and desc->slice[%zu] both contain query %ld and key %ld",
                    &first, &second, &row, &column) == 4);
    CHECK(first < second);
    CHECK((contains(slices.at(first), row, column) && contains(slices.at(second), row, column)));
  }
  CHECK(shared > 20);
}

TEST_CASE("slices that are not valid are refused by name", "[slices]") {
  using Slices = std::vector<seqparAttnSlice_t>;
  const auto refused = [](const Slices& slices, const char* text) {
    CHECK_THAT(createError(descOf(slices, 8)), Catch::Contains(text));
  };
  refused(Slices{SEQPAR_ATTN_SLICE_FULL(-1, 4, 0, 4)}, "desc->slice[0].row is -1, expected 0 to 8, the tokens");
  refused(Slices{SEQPAR_ATTN_SLICE_FULL(0, 4, 0, 4), SEQPAR_ATTN_SLICE_FULL(5, 9, 0, 4)},
          "desc->slice[1].rows is 4, expected 0 to 3, the tokens from row 5 on");
  refused(Slices{SEQPAR_ATTN_SLICE_FULL(0, 4, 9, 9)}, "desc->slice[0].column is 9, expected 0 to 8, the keys");
  refused(Slices{SEQPAR_ATTN_SLICE_FULL(0, 4, 6, 9)}, "desc->slice[0].columns is 3, expected 0 to 2");
  refused(Slices{{0, INT64_MAX, 0, 1, INT64_MIN, INT64_MAX}}, "desc->slice[0].rows is 9223372036854775807");
  auto desc = descOf({}, 8);
  desc.slices = 3;
  desc.slice = nullptr;
  CHECK_THAT(createError(desc), Catch::Contains("desc->slice is NULL, expected [3] slices"));
  desc.slices = SEQPAR_ATTN_MOST_SLICES + 1;
  CHECK_THAT(createError(desc), Catch::Contains("desc->slices is 1048577, expected 0 to 1048576"));
  desc.slices = -1;
  CHECK_THAT(createError(desc), Catch::Contains("desc->slices is -1"));
  const Slices whole{SEQPAR_ATTN_SLICE_CAUSAL(0, 8, 0, 8)};
  static const int64_t kBounds[] = {0, 8};
  desc = descOf(whole, 8);
  desc.sequences = 1;
  desc.cuSeqlens = kBounds;
  CHECK_THAT(createError(desc), Catch::Contains("desc->sequences is 1, expected 0 with slices: documents are slices"));
  desc = descOf(whole, 8);
  desc.family = seqparAttnGla;
  CHECK_THAT(createError(desc, seqparInvalidUsage), Catch::Contains("desc->slices is 1, expected 0: linear attention"));
  desc = descOf(whole, 8);
  desc.mask = seqparAttnCausal;
  desc.algorithm = seqparAttnDistAttn;
  CHECK_THAT(createError(desc, seqparInvalidUsage),
             Catch::Contains("(dist_attn), which supports no slices; expected one that can: local, ring"));
  const Slices extreme{{0, 8, 0, 8, INT64_MIN, INT64_MAX - 1}, {0, 8, 0, 8, INT64_MAX, INT64_MIN}};
  CHECK(createError(descOf(extreme, 8), seqparSuccess).empty());
}

TEST_CASE("ranks name the difference between their slices", "[slices]") {
  const RankThreads ranks(2, [](int) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.checkArguments = 1;
    return config;
  });
  const auto said = ranks.each([&](int rank) -> std::string {
    const std::vector<seqparAttnSlice_t> slices{SEQPAR_ATTN_SLICE_CAUSAL(0, 4, 0, 4),
                                                SEQPAR_ATTN_SLICE_FULL(4 + rank, 8, 0, 4)};
    auto desc = descOf(slices, 8);
    desc.algorithm = seqparAttnRing;
    seqparAttnPlan_t plan = nullptr;
    const auto result = seqparAttnPlanCreate(&plan, &desc, ranks[rank]);
    return result == seqparInvalidUsage ? seqparAttnGetLastError() : seqparGetErrorString(result);
  });
  for (const auto& error : said) {
    CHECK_THAT(error, Catch::Contains("the ranks disagree: rank 1 has the numbers of desc->slice[6] 5, rank 0 has 4"));
  }
}

TEST_CASE("softmax attention: slices with every algorithm on random layouts", "[slices]") {
  const int ranks = GENERATE(1, 2, 3, 4, 5);
  const RankThreads group(ranks);
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || (row.id == seqparAttnLocal && ranks > 1)) continue;
    for (int round = 0; round < 4; ++round) {
      SoftmaxSpec s = drawSpec(random, ranks);
      s.heads = s.kvHeads = draw(random, 1, 2);
      s.headDim = s.valueDim = 4;
      s.algorithm = row.id;
      s.tokens = draw(random, 1, round == 3 ? 150 : 40);
      if (round == 2) {  // aligned at the ends, as windows of cross-attention are
        s.kvTokens = draw(random, 1, 60);
        s.mask = seqparAttnFull;
        s.windowLeft = draw(random, -1, 30);
        s.windowRight = draw(random, -1, 10);
      }
      s.slices = drawSlices(random, s.tokens, s.kvTokens > 0 ? s.kvTokens : s.tokens, round + 2);
      s.layoutKind = row.id == seqparAttnZigzag    ? seqparZigzag
                     : row.id == seqparAttnStriped ? seqparStriped
                                                   : static_cast<int>(random() % 3);
      const bool tied = row.id == seqparAttnZigzag || row.id == seqparAttnStriped;
      if (!tied && s.kvTokens == 0 && random() % 2 == 0) drawPieces(s, random, ranks);
      CAPTURE(ranks, row.name, s.text());
      if (!refusalOf(row, s, group[0]).empty()) continue;
      CHECK(runCase(SoftmaxCase(s, random()), &group) == "");
    }
  }
}

TEST_CASE("softmax attention: NaN in keys that no query sees reaches no result", "[slices]") {
  const int ranks = GENERATE(1, 3);
  const RankThreads group(ranks);
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || (row.id == seqparAttnLocal && ranks > 1)) continue;
    SoftmaxSpec s = drawSpec(random, ranks);
    s.batch = 1;
    s.algorithm = row.id;
    s.tokens = 60;
    s.slices = {SEQPAR_ATTN_SLICE_CAUSAL(2, 21, 2, 21), SEQPAR_ATTN_SLICE_FULL(25, 50, 2, 17),
                SEQPAR_ATTN_SLICE_BICAUSAL(25, 50, 30, 58)};  // keys 0, 1, 21 to 29, 58 and 59: no query
    if (!refusalOf(row, s, group[0]).empty()) continue;
    SoftmaxCase c(s, random());
    const SoftmaxAnswer answer(c);
    const auto poison = [&](std::vector<double>& numbers, int64_t dim) {
      for (int64_t t = 0; t < s.tokens; ++t) {
        bool seen = false;
        for (int64_t i = 0; i < s.tokens; ++i) seen = seen || s.sees(i, t);
        if (seen) continue;
        const auto first = numbers.begin() + t * s.kvHeads * dim;
        std::fill(first, first + s.kvHeads * dim, NAN);
      }
    };
    poison(c.k, s.headDim);
    poison(c.v, s.valueDim);
    CAPTURE(ranks, row.name, s.text());
    CHECK(runCase(c, &group, {}, &answer) == "");
  }
}

TEST_CASE("softmax attention: gradients with slices are differences of the loss", "[slices]") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  SoftmaxSpec s;
  s.tokens = 12;
  s.heads = 2;
  s.kvHeads = 1;
  s.headDim = s.valueDim = 4;
  s.slices = drawSlices(random, s.tokens, s.tokens);
  SoftmaxCase c(s, random());
  CAPTURE(s.text());
  const RankThreads group(2);
  SoftmaxResult result(c, NAN);
  REQUIRE(runOn(c, &group, {}, result) == "");
  const auto loss = [&] {
    const SoftmaxAnswer answer(c);
    double sum = 0;
    for (size_t i = 0; i < c.dOut.size(); ++i) sum += answer.out.value[i] * c.dOut[i];
    return sum;
  };
  const auto check = [&](std::vector<double>& inputs, const std::vector<double>& gradient) {
    constexpr double kStep = 1e-5;
    for (int probe = 0; probe < 10; ++probe) {
      const size_t at = random() % inputs.size();
      const double before = inputs[at];
      inputs[at] = before + kStep;
      const double above = loss();
      inputs[at] = before - kStep;
      const double below = loss();
      inputs[at] = before;
      CHECK(gradient[at] == Approx((above - below) / (2 * kStep)).margin(1e-4));
    }
  };
  check(c.q, result.dq);
  check(c.k, result.dk);
  check(c.v, result.dv);
}

TEST_CASE("plans with as many slices as possible are created", "[slices]") {
  std::vector<seqparAttnSlice_t> slices;
  slices.reserve(SEQPAR_ATTN_MOST_SLICES);
  for (int64_t t = 0; t < SEQPAR_ATTN_MOST_SLICES; ++t) slices.push_back(SEQPAR_ATTN_SLICE_FULL(t, t + 1, t, t + 1));
  auto desc = descOf(slices, SEQPAR_ATTN_MOST_SLICES);
  desc.algorithm = seqparAttnLocal;
  CHECK(createError(desc, seqparSuccess).empty());
}

TEST_CASE("softmax attention: ten thousand slices", "[slices]") {
  SoftmaxSpec s;
  s.tokens = 20000;
  s.headDim = s.valueDim = 1;
  for (int64_t d = 0; d < s.tokens; d += 2) s.slices.push_back(SEQPAR_ATTN_SLICE_CAUSAL(d, d + 2, d, d + 2));
  auto desc = s.desc();
  desc.algorithm = seqparAttnLocal;
  std::vector<float> ones(static_cast<size_t>(s.tokens), 1), out(ones.size()), lse(ones.size());
  seqparAttnPlan_t plan = nullptr;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparSuccess);
  seqparAttnForwardArgs_t f = SEQPAR_ATTN_FORWARD_INITIALIZER;
  f.q.data = f.k.data = f.v.data = ones.data();
  f.out.data = out.data();
  f.lse = lse.data();
  REQUIRE(seqparAttnForward(plan, &f, nullptr) == seqparSuccess);
  for (size_t t = 0; t < out.size(); ++t) {
    if (out[t] == 1 && std::abs(lse[t] - (t % 2 == 0 ? 1.0f : 1.0f + std::log(2.0f))) < 1e-5f) continue;
    FAIL("token " << t << ": " << out[t] << ", " << lse[t]);
  }
  CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
}

}  // namespace
