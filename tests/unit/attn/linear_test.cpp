// Linear attention through the plan, on ranks that are threads, against the recurrence in fp64.
#include <numeric>
#include <random>

#include "linear_check.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;
using seqpar::test::DecayStrength;
using seqpar::test::farFrom;
using seqpar::test::Keys;
using seqpar::test::linearFamilies;
using seqpar::test::LinearReference;

constexpr int kAlgorithms[] = {seqparAttnAuto, seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};

LinearCase makeCase(int family, const std::vector<int64_t>& lengths, DecayStrength strength) {
  LinearCase c;
  c.family = family;
  c.tokens = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  c.heads = 2;
  c.keyHeads = 1;
  c.dk = 8;
  c.dv = 6;
  c.strength = strength;
  c.hasInitial = c.hasFinalGradient = true;
  return c;
}

TEST_CASE("linear attention agrees with the recurrence on any number of ranks") {
  const auto lengths = GENERATE(std::vector<int64_t>{150}, std::vector<int64_t>{65, 70},
                                std::vector<int64_t>{0, 3, 130}, std::vector<int64_t>{64, 0, 1, 77},
                                std::vector<int64_t>{17, 70, 64, 0, 33}, std::vector<int64_t>{1, 0, 1, 0, 90, 3, 0, 0});
  const seqpar::test::Seed seed;
  const RankThreads ranks(static_cast<int>(lengths.size()));
  for (const int family : linearFamilies()) {
    for (const auto strength : {DecayStrength::Weak, DecayStrength::Strong, DecayStrength::Mixed}) {
      auto c = makeCase(family, lengths, strength);
      c.batch = strength == DecayStrength::Weak ? 2 : 1;
      c.hasInitial = strength != DecayStrength::Strong;
      c.hasFinalGradient = strength != DecayStrength::Mixed;
      c.keys = strength == DecayStrength::Mixed ? Keys::Independent : Keys::Walk;
      c.normalize = c.delta() && strength == DecayStrength::Strong;
      c.mostBeta = strength == DecayStrength::Weak ? 2.0f : 1.0f;
      c.fill(seed);
      CAPTURE(c.describe(), lengths);
      check(ranks, c, lengths, {});
    }
  }
}

TEST_CASE("every algorithm carries the states of every family, in the call and on a stream") {
  const std::vector<int64_t> lengths{40, 7, 90};
  const seqpar::test::Seed seed;
  const RankThreads ranks(3);
  for (const int family : linearFamilies()) {
    auto c = makeCase(family, lengths, DecayStrength::Weak);
    if (c.delta()) c.heads = 4;
    c.fill(seed);
    for (const int algorithm : kAlgorithms) {
      for (const bool onStream : {false, true}) {
        CAPTURE(c.describe(), algorithm, onStream);
        LinearOptions options;
        options.algorithm = algorithm;
        options.onStream = onStream;
        options.repeats = 2;
        check(ranks, c, lengths, options);
      }
    }
  }
}

TEST_CASE("packed sequences have separate states on all ranks") {
  const auto lengths = GENERATE(std::vector<int64_t>{200}, std::vector<int64_t>{60, 0, 140},
                                std::vector<int64_t>{1, 63, 126, 10}, std::vector<int64_t>{0, 64, 64, 0, 72});
  const seqpar::test::Seed seed;
  const RankThreads ranks(static_cast<int>(lengths.size()));
  for (const auto& starts :
       {std::vector<int64_t>{0, 200}, {0, 0, 1, 60, 64, 64, 190, 200, 200}, {0, 128, 200}, {0, 199, 200}}) {
    for (const int family : linearFamilies()) {
      auto c = makeCase(family, lengths, DecayStrength::Weak);
      c.cuSeqlens = starts;
      c.fill(seed);
      CAPTURE(c.describe(), lengths);
      LinearOptions options;
      options.onStream = family % 2 == 0;
      check(ranks, c, lengths, options);
    }
  }
}

TEST_CASE("types, strides, head counts and sizes of linear attention") {
  const std::vector<int64_t> lengths{70, 45};
  const seqpar::test::Seed seed;
  const RankThreads ranks(2);
  for (const int family : linearFamilies()) {
    for (const int type : {seqparFloat32, seqparFloat16, seqparBfloat16}) {
      auto c = makeCase(family, lengths, DecayStrength::Strong);
      c.dataType = type;
      c.gateType = type == seqparFloat16 ? seqparFloat32 : type;
      c.betaType = type == seqparBfloat16 ? seqparFloat32 : c.gateType;
      c.normalize = c.delta() && type != seqparFloat32;
      c.heads = type == seqparFloat32 ? 6 : 1;
      c.keyHeads = type == seqparFloat32 ? 2 : 1;
      c.dk = type == seqparFloat16 ? 1 : 33;
      c.dv = type == seqparBfloat16 ? 1 : 17;
      c.batch = 2;
      c.fill(seed);
      LinearOptions options;
      options.padding = 3;
      options.headsFirst = type != seqparFloat16;
      options.reserve = type == seqparFloat16;
      CAPTURE(c.describe());
      check(ranks, c, lengths, options);
      options.training = false;
      check(ranks, c, lengths, options);
    }
  }
}

TEST_CASE("linear attention on one rank needs no communicator") {
  const seqpar::test::Seed seed;
  for (const int family : linearFamilies()) {
    auto c = makeCase(family, {333}, DecayStrength::Weak);
    c.fill(seed);
    CAPTURE(c.describe());
    const LinearReference expected(c, {});
    LinearResult result;
    REQUIRE(runLinear(c, {333}, 0, nullptr, {}, result) == "");
    CHECK(farFrom(expected.out, result.out, termsOf(c), c.dataType) == "");
    CHECK(farFrom(expected.dk, result.dk, termsOf(c), c.dataType) == "");
    if (c.hasGate()) CHECK(farFrom(expected.dGate, result.dGate, termsOf(c), c.gateType) == "");
    if (c.hasBeta()) CHECK(farFrom(expected.dBeta, result.dBeta, termsOf(c), c.betaType) == "");
  }
}

TEST_CASE("linear attention gives the same bits whatever runs concurrently with its scan") {
  const std::vector<int64_t> lengths{500, 300, 700};
  const seqpar::test::Seed seed;
  const RankThreads ranks(3);
  for (const int family : {seqparAttnGla, seqparAttnScalar}) {
    auto c = makeCase(family, lengths, DecayStrength::Weak);
    c.heads = 3;
    c.dk = c.dv = 16;
    c.fill(seed);
    CAPTURE(c.describe());
    std::vector<std::vector<LinearResult>> runs(6, std::vector<LinearResult>(3));
    for (size_t i = 0; i < runs.size(); ++i) {
      LinearOptions options;
      options.onStream = i % 2 == 1;
      const auto said = ranks.each([&](int rank) {
        return runLinear(c, lengths, rank, ranks[rank], options, runs[i][static_cast<size_t>(rank)]);
      });
      for (size_t r = 0; r < 3; ++r) {
        REQUIRE(said[r] == "");
        CHECK(runs[i][r].out == runs[0][r].out);
        CHECK(runs[i][r].dq == runs[0][r].dq);
        CHECK(runs[i][r].dk == runs[0][r].dk);
        CHECK(runs[i][r].dv == runs[0][r].dv);
        CHECK(runs[i][r].dGate == runs[0][r].dGate);
      }
    }
  }
}

// Small integers and decays that are powers of two: every order of additions gives equal bits.
TEST_CASE("linear attention on exact values gives equal bits on any number of ranks") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  auto c = makeCase(seqparAttnSum, {96}, DecayStrength::Weak);
  c.fill(seed);
  c.scale = 1;
  for (auto* numbers : {&c.q, &c.k, &c.v, &c.dOut, &c.initial, &c.dFinal}) {
    for (auto& number : *numbers) number = static_cast<float>(static_cast<int>(random() % 5) - 2);
  }
  LinearResult whole;
  REQUIRE(runLinear(c, {96}, 0, nullptr, {}, whole) == "");
  for (const auto& lengths : {std::vector<int64_t>{50, 46}, {33, 0, 63}, {1, 2, 30, 60, 3}}) {
    const RankThreads ranks(static_cast<int>(lengths.size()));
    for (const int algorithm : kAlgorithms) {
      CAPTURE(lengths, algorithm);
      LinearOptions options;
      options.algorithm = algorithm;
      std::vector<LinearResult> parts(lengths.size());
      const auto said = ranks.each([&](int rank) {
        return runLinear(c, lengths, rank, ranks[rank], options, parts[static_cast<size_t>(rank)]);
      });
      size_t begin = 0;
      for (size_t r = 0; r < parts.size(); ++r) {
        REQUIRE(said[r] == "");
        const size_t end = begin + static_cast<size_t>(lengths[r]);
        CHECK(parts[r].out == tokensOf(c, whole.out, c.heads * c.dv, begin, end));
        CHECK(parts[r].dq == tokensOf(c, whole.dq, c.keyHeads * c.dk, begin, end));
        CHECK(parts[r].dk == tokensOf(c, whole.dk, c.keyHeads * c.dk, begin, end));
        CHECK(parts[r].dv == tokensOf(c, whole.dv, c.heads * c.dv, begin, end));
        begin = end;
      }
    }
  }
}

TEST_CASE("a log-decay of -inf discards NaN and infinity from other ranks") {
  const std::vector<int64_t> lengths{20, 70};
  const seqpar::test::Seed seed;
  const RankThreads ranks(2);
  for (const int family : linearFamilies()) {
    auto c = makeCase(family, lengths, DecayStrength::Weak);
    if (c.gateWidth() == 0) continue;
    c.fill(seed);
    const size_t row = c.heads * c.gateWidth(), forgets = 35;  // not the first token of a chunk
    std::fill_n(c.gate.begin() + static_cast<std::ptrdiff_t>(forgets * row), row, -INFINITY);
    const LinearReference expected(c, {});
    auto poisoned = c;
    poisoned.initial[5] = NAN;
    poisoned.k[3] = INFINITY;
    poisoned.dFinal.assign(poisoned.dFinal.size(), NAN);
    std::vector<LinearResult> results(2);
    CAPTURE(c.describe());
    const auto said = ranks.each([&](int rank) {
      return runLinear(poisoned, lengths, rank, ranks[rank], {}, results[static_cast<size_t>(rank)]);
    });
    REQUIRE(said == std::vector<std::string>(2));
    // Outputs after the token, and gradients before it, are independent of the other side.
    const size_t inRank = forgets - 20, values = c.heads * c.dv;
    const std::vector<float> out(results[1].out.begin() + static_cast<std::ptrdiff_t>(inRank * values),
                                 results[1].out.end());
    CHECK(farFrom(expected.out, out, termsOf(c), c.dataType, forgets * values) == "");
    auto finite = c;  // gradients of values before the token do not depend on those after it
    finite.dFinal.assign(finite.dFinal.size(), 0.0f);
    const LinearReference before(finite, {});
    if (!c.delta()) {  // chunks of the delta rule multiply their keys by each other
      const std::vector<float> behindTheFirst(results[0].dv.begin() + static_cast<std::ptrdiff_t>(values),
                                              results[0].dv.end());  // skips the token with the infinite key
      CHECK(farFrom(before.dv, behindTheFirst, termsOf(c), c.dataType, values) == "");
    }
    const std::vector<float> dv(results[1].dv.begin(),
                                results[1].dv.begin() + static_cast<std::ptrdiff_t>(inRank * values));
    CHECK(farFrom(before.dv, dv, termsOf(c), c.dataType, 20 * values) == "");
  }
}

TEST_CASE("a log-decay of -inf discards NaN and infinity from earlier chunks of one rank") {
  const seqpar::test::Seed seed;
  for (const int family : linearFamilies()) {
    auto c = makeCase(family, {140}, DecayStrength::Weak);
    if (c.gateWidth() == 0) continue;
    c.fill(seed);
    const size_t row = c.heads * c.gateWidth(), forgets = 99;  // within the second chunk
    std::fill_n(c.gate.begin() + static_cast<std::ptrdiff_t>(forgets * row), row, -INFINITY);
    const LinearReference expected(c, {});
    for (const float poison : {static_cast<float>(NAN), static_cast<float>(INFINITY)}) {
      auto poisoned = c;
      poisoned.initial[5] = poison;
      poisoned.k[3] = poison;
      LinearResult result;
      CAPTURE(c.describe(), poison);
      REQUIRE(runLinear(poisoned, {140}, 0, nullptr, {}, result) == "");
      const size_t values = c.heads * c.dv;
      const std::vector<float> out(result.out.begin() + static_cast<std::ptrdiff_t>(forgets * values),
                                   result.out.end());
      CHECK(farFrom(expected.out, out, termsOf(c), c.dataType, forgets * values) == "");
    }
  }
}

TEST_CASE("nearly equal keys and betas up to 2 are exact over many chunks") {
  const seqpar::test::Seed seed;
  const RankThreads ranks(2);
  for (const int family : linearFamilies()) {
    for (const auto keys : {Keys::Walk, Keys::Same}) {
      const std::vector<int64_t> lengths{1021, 1020};
      auto c = makeCase(family, lengths, DecayStrength::Weak);
      if (!c.delta()) continue;
      c.heads = 1;
      c.dk = 16;
      c.dv = 8;
      c.keys = keys;
      c.normalize = true;
      c.mostBeta = keys == Keys::Same ? 1.0f : 2.0f;
      c.fill(seed);
      CAPTURE(c.describe());
      check(ranks, c, lengths, {});
    }
  }
}

TEST_CASE("lengths around those of blocks and chunks") {
  const seqpar::test::Seed seed;
  for (const int family : linearFamilies()) {
    for (const int64_t length : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 47, 49, 63, 64, 65, 127, 129}) {
      const std::vector<int64_t> lengths{length};
      const RankThreads ranks(1);
      auto c = makeCase(family, lengths, DecayStrength::Weak);
      c.dk = 1 + static_cast<size_t>(length) % 9;
      c.strength = DecayStrength::Mixed;
      c.fill(seed);
      CAPTURE(c.describe());
      check(ranks, c, lengths, {});
    }
  }
}

TEST_CASE("extreme decays") {
  const seqpar::test::Seed seed;
  const std::vector<int64_t> lengths{70, 75};
  const RankThreads ranks(2);
  for (const int family : linearFamilies()) {
    for (const float strong : {-1e-3f, -5.0f, -1e4f, -INFINITY}) {
      auto c = makeCase(family, lengths, DecayStrength::Weak);
      if (!c.hasGate()) continue;
      c.fill(seed);
      for (size_t i = 0; i < c.gate.size(); ++i) c.gate[i] = i % 5 == 0 || strong > -1 ? strong : 0.0f;
      CAPTURE(c.describe(), strong);
      check(ranks, c, lengths, {});
    }
  }
}

// Central differences of a loss that is linear in the outputs: sum of dOut out + sum of dFinal final.
TEST_CASE("gradients of linear attention agree with finite differences") {
  const std::vector<int64_t> lengths{7};
  const seqpar::test::Seed seed;
  for (const int family : linearFamilies()) {
    for (const bool normalize : {false, true}) {
      auto c = makeCase(family, lengths, DecayStrength::Weak);
      if (normalize && !c.delta()) continue;
      c.dk = 3;
      c.dv = 2;
      c.normalize = normalize;
      c.fill(seed);
      for (auto& number : c.beta) number = 0.25f + number / 2;  // steps stay inside
      for (auto& number : c.k) number = number == 0 ? 0.5f : number;
      CAPTURE(c.describe());
      const LinearReference expected(c, {});
      const auto loss = [&](const LinearCase& at) {
        const LinearReference r(at, {});
        double sum = 0;
        for (size_t i = 0; i < r.out.value.size(); ++i) sum += r.out.value[i] * static_cast<double>(at.dOut[i]);
        for (size_t i = 0; i < r.final.value.size(); ++i) sum += r.final.value[i] * static_cast<double>(at.dFinal[i]);
        return sum;
      };
      const auto differences = [&](std::vector<float> LinearCase::*member, const Bounded& gradient) {
        for (size_t i = 0; i < gradient.value.size(); ++i) {
          auto up = c, down = c;
          const float step = 0x1p-12f * std::max(0.125f, std::abs((c.*member)[i]));
          (up.*member)[i] += step;
          (down.*member)[i] -= step;
          const double width = static_cast<double>((up.*member)[i]) - static_cast<double>((down.*member)[i]);
          const double found = (loss(up) - loss(down)) / width;
          CAPTURE(i, found, gradient.value[i]);
          CHECK(std::abs(found - gradient.value[i]) <= 1e-3 * (1 + gradient.magnitude[i]));
        }
      };
      differences(&LinearCase::q, expected.dq);
      differences(&LinearCase::k, expected.dk);
      differences(&LinearCase::v, expected.dv);
      if (c.hasBeta()) differences(&LinearCase::beta, expected.dBeta);
      differences(&LinearCase::initial, expected.dInitial);
      if (c.hasGate()) differences(&LinearCase::gate, expected.dGate);
    }
  }
}

}  // namespace
