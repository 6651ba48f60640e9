// Parts of the linear attention kernels other than products: decays by halving, items of work, segments.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/arch/mma.h"
#include "kernels/attn/linear/args.h"
#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/work.h"
#include "unit/seed.h"

using namespace seqpar::attn;

TEST_CASE("each token pair of a block is in one level, and its exponents add up to the decay") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    float sums[kBlockTokens], sum = 0;
    for (float& s : sums) {
      const auto choice = random() % 8;
      const float gate = choice == 0   ? -std::numeric_limits<float>::infinity()
                         : choice == 1 ? -30.0F
                                       : -static_cast<float>(random() % 1000) / 500;
      s = sum += log2Decay(choice == 2 ? 0.0F : gate);
    }
    for (int i = 0; i < kBlockTokens; ++i) {
      for (int j = 0; j < kBlockTokens; ++j) {
        int made = 0;
        for (int level = kBlockTokens / 2; level > 0; level /= 2) {
          if (!madeAtLevel(i, j, level)) continue;
          ++made;
          const float query = levelExponent(sums, i, level), key = levelExponent(sums, j, level);
          REQUIRE(query <= 0);
          REQUIRE(key <= 0);
          // Both are differences of sums up to 16 * 160, rounded to at most 2^-12.
          REQUIRE(std::abs((query + key) - (sums[i] - sums[j])) <= 0x1p-11F);
        }
        REQUIRE(made == (j < i ? 1 : 0));
      }
    }
  }
}

TEST_CASE("a token's log2-decay is clamped where its factor is 0, and keeps NaN") {
  CHECK(log2Decay(0) == 0);
  CHECK(log2Decay(-1) == Approx(-1.442695));
  CHECK(log2Decay(-std::numeric_limits<float>::infinity()) == kLeastLog2);
  CHECK(std::exp2(kLeastLog2) == 0.0F);
  CHECK(std::isnan(log2Decay(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("16-bit operands keep NaN, and fp16 saturates") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const auto halves = seqpar::ptx::pack<seqpar::Fp16>(nan, -nan), bfloats = seqpar::ptx::pack<seqpar::Bf16>(nan, -nan);
  for (const int shift : {0, 16}) {
    CHECK((halves >> shift & 0x7fffU) > 0x7c00U);
    CHECK((bfloats >> shift & 0x7fffU) > 0x7f80U);
  }
  CHECK(seqpar::ptx::pack<seqpar::Fp16>(70000, -infinity) == 0xfbff7bffU);
  CHECK(seqpar::ptx::pack<seqpar::Bf16>(infinity, -infinity) == 0xff807f80U);
  CHECK(seqpar::ptx::pack<seqpar::Fp16>(1, -0.5F) == 0xb8003c00U);
}

TEST_CASE("segments cover all tokens, and items all segments, heads and tiles once") {
  for (const int64_t tokens : {0, 1, 63, 64, 65, 1000, 2041, 8192, 32768, 131072}) {
    for (const int heads : {1, 3, 16, 32, 100}) {
      LinearProblem problem;
      problem.batch = 2;
      problem.tokens = tokens;
      problem.heads = problem.qkHeads = heads;
      problem.dk = 128;
      problem.dv = 256;
      const Segments cut = cutIntoSegments(problem, 264);
      REQUIRE(cut.count >= 1);
      REQUIRE(cut.tokens % kChunkTokens == 0);
      REQUIRE(cut.count * cut.tokens >= tokens);
      REQUIRE((cut.count == 1 || (cut.count - 1) * cut.tokens < tokens));
      const HeadRange range{heads / 2, heads - heads / 2};
      const int64_t items = itemCount(problem, range, cut.count, 2);
      std::vector<int> seen(static_cast<size_t>(2 * heads * cut.count * 2));
      int64_t covered = 0;
      for (int64_t i = 0; i < items; ++i) {
        const Item item = itemAt(i, problem, range, cut, cut.count, 2);
        REQUIRE(item.head >= range.first);
        REQUIRE(item.end <= tokens);
        REQUIRE(item.end >= item.begin);
        covered += item.end - item.begin;
        ++seen[static_cast<size_t>(mapIndex(item, problem, cut) * 2 + item.tile)];
      }
      CHECK(covered == problem.batch * range.count * 2 * tokens);
      CHECK(*std::max_element(seen.begin(), seen.end()) == 1);
      CHECK(std::count(seen.begin(), seen.end(), 1) == items);
    }
  }
}

TEST_CASE("the lead and the following segments cover all tokens") {
  for (const int64_t tokens : {0, 1, 65, 1000, 2041, 8192, 32768, 131072}) {
    for (const int heads : {1, 3, 16, 24, 32, 66, 100, 200}) {
      LinearProblem problem;
      problem.tokens = tokens;
      problem.heads = problem.qkHeads = heads;
      problem.dk = problem.dv = 128;
      problem.gate = heads % 2 == 0 ? Gate::Token : Gate::None;
      const Segments equal = cutIntoSegments(problem, 132), cut = cutForward(problem, 132, true);
      REQUIRE(cut.begin % kChunkTokens == 0);
      REQUIRE(cut.tokens % kChunkTokens == 0);
      REQUIRE(cut.begin + cut.count * cut.tokens >= tokens);
      REQUIRE((cut.count == 1 || cut.begin + (cut.count - 1) * cut.tokens < tokens));
      CHECK(cut.tokens <= equal.tokens);
      // Outputs of the lead run on separate SMs, concurrently with pass 1.
      if (cut.begin > 0) CHECK(cut.count * heads <= 132);
      const Segments none = cutForward(problem, 132, false);
      CHECK((none.begin == 0 && none.count == equal.count && none.tokens == equal.tokens));
      int64_t covered = cut.begin * heads;
      for (int64_t i = 0; i < itemCount(problem, {0, heads}, cut.count, 1); ++i) {
        const Item item = itemAt(i, problem, {0, heads}, cut, cut.count, 1);
        covered += item.end - item.begin;
      }
      CHECK(covered == tokens * heads);
    }
  }
}

TEST_CASE("segments with decays are shorter by the lead concurrent with pass 1") {
  LinearProblem problem;
  problem.tokens = 8192;
  problem.heads = problem.qkHeads = 32;
  problem.dk = problem.dv = 128;
  problem.gate = Gate::Token;
  const Segments few = cutForward(problem, 132, true);
  CHECK((few.count == 4 && few.tokens == 29 * 64 && few.begin == 12 * 64));
  problem.heads = problem.qkHeads = 16;
  const Segments many = cutForward(problem, 132, true);
  CHECK((many.count == 8 && many.tokens == 15 * 64 && many.begin == 8 * 64));
  problem.gate = Gate::None;
  CHECK(cutForward(problem, 132, true).begin == 0);
}

TEST_CASE("the lead's state is stored next to the maps") {
  LinearProblem problem;
  problem.heads = problem.qkHeads = 3;
  problem.dk = problem.dv = 16;
  problem.tokens = 1000;
  const Segments cut{2, 448, 128};
  char memory[1];
  const StateMaps maps = stateMapsIn(memory, problem, cut);
  const auto at = [&](const float* part) { return reinterpret_cast<const char*>(part) - memory; };
  CHECK(at(maps.lead) >= at(maps.states) + 3 * 2 * 16 * 16 * 4);
  CHECK(at(maps.transitions) >= at(maps.lead) + 3 * 16 * 16 * 4);
  CHECK(static_cast<int64_t>(stateMapsSize(problem, cut)) >= at(maps.transitions) + 3 * 2 * 4);
  CHECK(stateMapsIn(memory, problem, {2, 512}).lead == nullptr);
}

TEST_CASE("few heads are cut into as many segments as fill the device") {
  LinearProblem problem;
  problem.tokens = 8192;
  problem.heads = problem.qkHeads = 16;
  problem.dk = problem.dv = 128;
  CHECK(cutIntoSegments(problem, 264).count == 16);
  problem.heads = problem.qkHeads = 32;
  CHECK(cutIntoSegments(problem, 264).count == 8);
}

TEST_CASE("problems without a kernel are named") {
  LinearProblem problem;
  problem.tokens = 10;
  problem.heads = 4;
  problem.qkHeads = 2;
  problem.dk = problem.dv = 64;
  problem.q.token = problem.k.token = problem.v.token = 256;
  CHECK(whyNot(problem) == nullptr);
  const auto refused = [&](auto change) {
    LinearProblem other = problem;
    change(other);
    return whyNot(other) != nullptr;
  };
  CHECK(refused([](LinearProblem& p) { p.qkHeads = 3; }));
  CHECK(refused([](LinearProblem& p) { p.dk = 24; }));
  CHECK(refused([](LinearProblem& p) { p.dk = 272; }));
  CHECK(refused([](LinearProblem& p) { p.dv = 520; }));
  CHECK(refused([](LinearProblem& p) { p.type = 7; }));
  CHECK(refused([](LinearProblem& p) { p.gate = Gate::Token; }));
  CHECK(refused([](LinearProblem& p) { p.gateType = seqparFloat16; }));
  CHECK(refused([](LinearProblem& p) { p.v.token = 252; }));
}
