// Corner cases of the contract in seqpar/attn_plan.h, on hosts.
#include <cmath>
#include <numeric>
#include <vector>

#include "common/covering.h"
#include "linear_call.h"
#include "naive_kernel.h"
#include "rank_threads.h"
#include "small_desc.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

/// Linear attention without decay, with queries, keys and values of 1: states count tokens. Sequence s starts with the
/// state 100 (s + 1).
struct Counts {
  std::vector<int64_t> lengths, bounds;  ///< bounds empty: not packed
  int algorithm = seqparAttnZeco;
  bool initial = false;
};

struct CountsOfRank {
  std::vector<float> out;
  float final = NAN;
  std::vector<float> dInitial;
};

std::vector<CountsOfRank> run(const RankThreads& ranks, const Counts& c) {
  std::vector<CountsOfRank> results(c.lengths.size());
  const auto said = ranks.each([&](int rank) -> std::string {
    auto& result = results[static_cast<size_t>(rank)];
    const auto tokens = static_cast<size_t>(c.lengths[static_cast<size_t>(rank)]);
    const size_t sequences = c.bounds.empty() ? 1 : c.bounds.size() - 1;
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.family = seqparAttnSum;
    desc.algorithm = c.algorithm;
    desc.tokensOfRanks = c.lengths.data();
    desc.sequences = c.bounds.empty() ? 0 : static_cast<int64_t>(sequences);
    desc.cuSeqlens = c.bounds.empty() ? nullptr : c.bounds.data();
    desc.heads = desc.headDim = 1;
    desc.scale = 1;
    seqparAttnPlan_t plan = nullptr;
    std::string wrong = check(seqparAttnPlanCreate(&plan, &desc, ranks[rank]), "create");
    if (wrong.empty()) wrong = check(seqparAttnPlanPrepare(plan, nullptr, 0), "prepare");
    std::vector<float> ones(tokens + 1, 1), dq(ones), dk(ones), dv(ones), initial(sequences);
    for (size_t s = 0; s < sequences; ++s) initial[s] = 100 * static_cast<float>(s + 1);
    float saved = NAN;
    result.out.assign(tokens, NAN);
    result.dInitial.assign(sequences, NAN);
    seqparAttnForwardArgs_t f = SEQPAR_ATTN_FORWARD_INITIALIZER;
    f.q.data = f.k.data = f.v.data = ones.data();
    f.out.data = result.out.data();
    f.saved = &saved;
    f.final = &result.final;
    f.initial = c.initial ? initial.data() : nullptr;
    if (wrong.empty()) wrong = check(seqparAttnForward(plan, &f, nullptr), "forward");
    seqparAttnBackwardArgs_t b = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    b.q.data = b.k.data = b.v.data = b.dOut.data = ones.data();
    b.dq.data = dq.data();
    b.dk.data = dk.data();
    b.dv.data = dv.data();
    b.saved = &saved;
    b.initial = f.initial;
    b.dInitial = result.dInitial.data();
    if (wrong.empty()) wrong = check(seqparAttnBackward(plan, &b, nullptr), "backward");
    seqparAttnPlanDestroy(plan);
    return wrong;
  });
  for (const auto& text : said) REQUIRE(text == "");
  return results;
}

constexpr int kLinear[] = {seqparAttnLocal, seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};

TEST_CASE("states of packed sequences: `final` of every rank, with and without tokens, and of LOCAL", "[contract]") {
  const std::vector<std::vector<int64_t>> lengthsOf{{3, 0, 4}, {0, 3, 4}, {3, 4, 0}, {0, 0, 7}, {2, 2, 3}};
  const std::vector<std::vector<int64_t>> boundsOf{{0, 3, 7}, {0, 5, 7}, {0, 7, 7}, {}};
  const RankThreads ranks(3);
  for (const int algorithm : kLinear) {
    for (size_t which = 0; which < lengthsOf.size() * boundsOf.size(); ++which) {
      const auto& lengths = lengthsOf[which % lengthsOf.size()];
      const auto& bounds = boundsOf[which / lengthsOf.size()];
      for (const bool initial : {false, true}) {
        if (!seqpar::test::covers(which % lengthsOf.size(), which / lengthsOf.size(), initial, 2)) continue;
        CAPTURE(seqparAttnAlgorithmName(algorithm), lengths, bounds, initial);
        const bool local = algorithm == seqparAttnLocal, packed = !bounds.empty();
        const auto first = [&](size_t s) { return initial ? 100 * static_cast<float>(s + 1) : 0; };
        const auto results = run(ranks, {lengths, bounds, algorithm, initial});
        float state = packed ? 0 : first(0);
        int64_t token = 0;
        for (size_t rank = 0; rank < lengths.size(); ++rank) {
          if (local && (packed || rank > 0)) state = 0;
          for (int64_t t = 0; t < lengths[rank]; ++t, ++token) {
            for (size_t s = 0; packed && s + 1 < bounds.size(); ++s) {
              if (bounds[s] == token && bounds[s + 1] > token) state = first(s);
            }
            ++state;
            CHECK(results[rank].out[static_cast<size_t>(t)] == state);
          }
          CAPTURE(rank);
          CHECK(results[rank].final == state);
        }
        // The gradient of an initial state is the number of tokens that see it; packed: the sum over the ranks.
        for (size_t s = 0; packed && s + 1 < bounds.size(); ++s) {
          float sum = 0, expected = static_cast<float>(bounds[s + 1] - bounds[s]);
          for (const auto& result : results) sum += result.dInitial[s];
          if (!local) CHECK(sum == expected);
        }
      }
    }
  }
}

TEST_CASE("dGates of the fixed family is a rank's share: the sum over the ranks is the gradient", "[contract]") {
  // Head 0: out_t = sum over s <= t of exp((t - s) g), so d(sum of out)/dg = sum of (t - s) exp((t - s) g).
  const std::vector<int64_t> lengths{5, 0, 9, 2};
  const float g = -0.25f;
  double expected = 0;
  for (int64_t t = 0; t < 16; ++t) {
    for (int64_t s = 0; s <= t; ++s) {
      expected += static_cast<double>(t - s) * std::exp(static_cast<double>(t - s) * static_cast<double>(g));
    }
  }
  const RankThreads ranks(4);
  for (const int algorithm : {int{seqparAttnZeco}, int{seqparAttnLasp1}, int{seqparAttnLasp2}}) {
    std::vector<float> shares(4, NAN);
    const auto said = ranks.each([&](int rank) -> std::string {
      seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
      desc.family = seqparAttnFixed;
      desc.algorithm = algorithm;
      desc.tokensOfRanks = lengths.data();
      desc.heads = desc.headDim = 1;
      desc.scale = 1;
      seqparAttnPlan_t plan = nullptr;
      std::string wrong = check(seqparAttnPlanCreate(&plan, &desc, ranks[rank]), "create");
      if (wrong.empty()) wrong = check(seqparAttnPlanPrepare(plan, nullptr, 0), "prepare");
      std::vector<float> ones(10, 1), out(10), dq(10), dk(10), dv(10);
      float saved = NAN, gate = g;
      seqparAttnForwardArgs_t f = SEQPAR_ATTN_FORWARD_INITIALIZER;
      f.q.data = f.k.data = f.v.data = ones.data();
      f.out.data = out.data();
      f.gates[0].data = &gate;
      f.saved = &saved;
      if (wrong.empty()) wrong = check(seqparAttnForward(plan, &f, nullptr), "forward");
      seqparAttnBackwardArgs_t b = SEQPAR_ATTN_BACKWARD_INITIALIZER;
      b.q.data = b.k.data = b.v.data = b.dOut.data = ones.data();
      b.dq.data = dq.data();
      b.dk.data = dk.data();
      b.dv.data = dv.data();
      b.gates[0] = f.gates[0];
      b.saved = &saved;
      b.dGates[0].data = &shares[static_cast<size_t>(rank)];
      if (wrong.empty()) wrong = check(seqparAttnBackward(plan, &b, nullptr), "backward");
      seqparAttnPlanDestroy(plan);
      return wrong;
    });
    for (const auto& text : said) CHECK(text == "");
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    CAPTURE(algorithm, shares);
    CHECK(std::abs(sum - expected) <= 1e-5 * expected);
    CHECK(std::abs(static_cast<double>(shares[0]) - expected) > 0.1 * expected);
  }
}

TEST_CASE("NaN in a value never reaches another packed sequence", "[contract]") {
  const int64_t bounds[] = {0, 3, 6};
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.tokens = 6;
  desc.heads = 1;
  desc.headDim = 2;
  desc.mask = seqparAttnCausal;
  desc.sequences = 2;
  desc.cuSeqlens = bounds;
  seqparAttnPlan_t plan = nullptr;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparSuccess);
  for (const bool inValue : {false, true}) {
    for (const float bad : {NAN, INFINITY}) {
      std::vector<float> q(12, 1), k(12, 1), v(12, 1), out(12), lse(6);
      (inValue ? v : k)[2 * 4] = bad;
      seqparAttnForwardArgs_t f = SEQPAR_ATTN_FORWARD_INITIALIZER;
      f.q.data = q.data();
      f.k.data = k.data();
      f.v.data = v.data();
      f.out.data = out.data();
      f.lse = lse.data();
      CAPTURE(inValue, bad);
      REQUIRE(seqparAttnForward(plan, &f, nullptr) == seqparSuccess);
      for (size_t t = 0; t < 3; ++t) CHECK(out[2 * t] == 1);
      for (size_t t = 4; t < 6; ++t) CHECK_FALSE(out[2 * t] == 1);
    }
  }
  CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
}

TEST_CASE("combinations that a description must not have", "[contract]") {
  const auto refused = [](const seqparAttnDesc_t& desc, const char* text) {
    seqparAttnPlan_t plan = nullptr;
    CHECK(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparInvalidArgument);
    CHECK_THAT(seqparAttnGetLastError(), Catch::Contains(text));
  };
  const int64_t bounds[] = {0, 3, 8}, lengths[] = {8};
  auto packedCross = smallDesc();
  packedCross.kvTokens = 8;
  packedCross.sequences = 2;
  packedCross.cuSeqlens = bounds;
  refused(packedCross, "desc->kvTokens is 8, expected 0 with packed sequences");
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  layout.ranks = 1;
  layout.tokens = 8;
  auto both = smallDesc();
  both.layout = &layout;
  both.tokensOfRanks = lengths;
  refused(both, "desc->layout and desc->tokensOfRanks are both set");
  auto linearCross = smallDesc();
  linearCross.family = seqparAttnSum;
  linearCross.kvTokens = 8;
  refused(linearCross, "desc->kvTokens is 8, expected 0: linear attention has no cross-attention");
}

TEST_CASE("a failing kernel of a plan without a communicator: SystemError, and the plan stays usable", "[contract]") {
  NaiveKernel::Calls calls;
  seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;
  kernel.forward = NaiveKernel::forward;
  kernel.backward = NaiveKernel::backward;
  kernel.self = &calls;
  auto desc = smallDesc();
  desc.kernel = &kernel;
  seqparAttnPlan_t plan = nullptr;
  REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
  REQUIRE(seqparAttnPlanPrepare(plan, nullptr, 0) == seqparSuccess);
  std::vector<float> numbers(64 * 3, 1), out(64), lse(16);
  seqparAttnForwardArgs_t f = SEQPAR_ATTN_FORWARD_INITIALIZER;
  f.q.data = numbers.data();
  f.k.data = numbers.data() + 64;
  f.v.data = numbers.data() + 128;
  f.out.data = out.data();
  f.lse = lse.data();
  seqparStream_t stream = nullptr;
  REQUIRE(seqparStreamCreate(&stream) == seqparSuccess);
  for (const bool launched : {false, true}) {
    calls.failsAt = calls.count + 1;
    calls.onStream = launched;
    if (launched) {
      REQUIRE(seqparAttnForward(plan, &f, stream) == seqparSuccess);
      CHECK(seqparStreamSynchronize(stream) == seqparSystemError);
      CHECK_THAT(seqparGetLastError(nullptr), Catch::Contains("the test's kernel failed on its stream"));
    } else {
      CHECK(seqparAttnForward(plan, &f, stream) == seqparSystemError);
      CHECK_THAT(seqparAttnGetLastError(), Catch::StartsWith("seqparAttnForward: ") &&
                                               Catch::Contains("kernel->forward returned 42, expected 0"));
      CHECK(seqparStreamSynchronize(stream) == seqparSuccess);
    }
    CHECK(seqparAttnForward(plan, &f, stream) == seqparSuccess);
    CHECK(seqparStreamSynchronize(stream) == seqparSuccess);
    CHECK(out[0] == 1);
  }
  CHECK(seqparStreamDestroy(stream) == seqparSuccess);
  CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
}

}  // namespace
