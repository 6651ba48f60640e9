// The delta rule through the plan, on ranks that are threads, against the recurrence in fp64.
#include <numeric>

#include "linear_check.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;
using seqpar::test::DecayStrength;
using seqpar::test::farFrom;
using seqpar::test::Keys;
using seqpar::test::LinearReference;

constexpr int kFamilies[] = {seqparAttnDelta, seqparAttnGatedDelta, seqparAttnKda};

LinearCase makeCase(int family, const std::vector<int64_t>& lengths) {
  LinearCase c;
  c.family = family;
  c.tokens = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  c.heads = 2;
  c.keyHeads = 1;
  c.dk = 8;
  c.dv = 6;
  c.hasInitial = c.hasFinalGradient = true;
  return c;
}

TEST_CASE("the delta rule agrees with the recurrence on any number of ranks") {
  const auto lengths =
      GENERATE(std::vector<int64_t>{150}, std::vector<int64_t>{65, 70}, std::vector<int64_t>{0, 3, 130},
               std::vector<int64_t>{64, 0, 1, 77}, std::vector<int64_t>{17, 16, 64, 0, 15});
  const seqpar::test::Seed seed;
  const RankThreads ranks(static_cast<int>(lengths.size()));
  for (const int family : kFamilies) {
    for (const auto strength : {DecayStrength::Weak, DecayStrength::Strong, DecayStrength::Mixed}) {
      auto c = makeCase(family, lengths);
      c.strength = strength;
      c.batch = strength == DecayStrength::Weak ? 2 : 1;
      c.keys = strength == DecayStrength::Mixed ? Keys::Independent : Keys::Walk;
      c.normalize = strength == DecayStrength::Strong;
      c.mostBeta = strength == DecayStrength::Weak ? 2.0f : 1.0f;
      c.hasInitial = strength != DecayStrength::Strong;
      c.hasFinalGradient = strength != DecayStrength::Mixed;
      c.fill(seed);
      CAPTURE(c.describe(), lengths);
      check(ranks, c, lengths, {});
    }
  }
}

TEST_CASE("every algorithm carries the states of the delta rule, in the call and on a stream") {
  const std::vector<int64_t> lengths{40, 7, 90};
  const seqpar::test::Seed seed;
  const RankThreads ranks(3);
  for (const int family : kFamilies) {
    auto c = makeCase(family, lengths);
    c.heads = 4;  // value heads of a key head: 4
    c.fill(seed);
    for (const int algorithm : {seqparAttnAuto, seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2}) {
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

TEST_CASE("nearly equal keys and betas up to 2 are exact over many chunks") {
  const seqpar::test::Seed seed;
  const RankThreads ranks(2);
  for (const int family : kFamilies) {
    for (const auto keys : {Keys::Walk, Keys::Same}) {
      const std::vector<int64_t> lengths{1021, 1020};
      auto c = makeCase(family, lengths);
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
  for (const int family : kFamilies) {
    for (const int64_t length : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 47, 49, 63, 64, 65, 127, 129}) {
      const std::vector<int64_t> lengths{length};
      const RankThreads ranks(1);
      auto c = makeCase(family, lengths);
      c.dk = 1 + static_cast<size_t>(length) % 9;
      c.strength = DecayStrength::Mixed;
      c.fill(seed);
      CAPTURE(c.describe());
      check(ranks, c, lengths, {});
    }
  }
}

TEST_CASE("extreme decays of the delta rule") {
  const seqpar::test::Seed seed;
  const std::vector<int64_t> lengths{70, 75};
  const RankThreads ranks(2);
  for (const int family : {seqparAttnGatedDelta, seqparAttnKda}) {
    for (const float strong : {-1e-3f, -5.0f, -1e4f, -INFINITY}) {
      auto c = makeCase(family, lengths);
      c.fill(seed);
      for (size_t i = 0; i < c.gate.size(); ++i) c.gate[i] = i % 5 == 0 || strong > -1 ? strong : 0.0f;
      CAPTURE(c.describe(), strong);
      check(ranks, c, lengths, {});
    }
  }
}

TEST_CASE("packed sequences have separate states of the delta rule") {
  const auto lengths =
      GENERATE(std::vector<int64_t>{200}, std::vector<int64_t>{60, 0, 140}, std::vector<int64_t>{0, 64, 64, 0, 72});
  const seqpar::test::Seed seed;
  const RankThreads ranks(static_cast<int>(lengths.size()));
  for (const auto& starts :
       {std::vector<int64_t>{0, 200}, {0, 0, 1, 60, 64, 64, 190, 200, 200}, {0, 128, 200}, {0, 199, 200}}) {
    for (const int family : kFamilies) {
      auto c = makeCase(family, lengths);
      c.cuSeqlens = starts;
      c.fill(seed);
      CAPTURE(c.describe(), lengths);
      LinearOptions options;
      options.onStream = family == seqparAttnKda;
      check(ranks, c, lengths, options);
    }
  }
}

TEST_CASE("types, strides, head counts and sizes of the delta rule") {
  const std::vector<int64_t> lengths{70, 45};
  const seqpar::test::Seed seed;
  const RankThreads ranks(2);
  for (const int family : kFamilies) {
    for (const int type : {seqparFloat32, seqparFloat16, seqparBfloat16}) {
      auto c = makeCase(family, lengths);
      c.dataType = type;
      c.gateType = type == seqparFloat16 ? seqparFloat32 : type;
      c.betaType = type == seqparBfloat16 ? seqparFloat32 : c.gateType;
      c.heads = type == seqparFloat32 ? 6 : 1;
      c.keyHeads = type == seqparFloat32 ? 2 : 1;
      c.dk = type == seqparFloat16 ? 1 : 33;
      c.dv = type == seqparBfloat16 ? 1 : 17;
      c.batch = 2;
      c.normalize = type != seqparFloat32;
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

TEST_CASE("a log-decay of -inf discards NaN of other ranks from the delta rule") {
  const std::vector<int64_t> lengths{20, 70};
  const seqpar::test::Seed seed;
  const RankThreads ranks(2);
  for (const int family : {seqparAttnGatedDelta, seqparAttnKda}) {
    auto c = makeCase(family, lengths);
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
    const size_t inRank = forgets - 20, values = c.heads * c.dv;
    const auto& out = results[1].out;
    const std::vector<float> later(out.begin() + static_cast<std::ptrdiff_t>(inRank * values), out.end());
    CHECK(farFrom(expected.out, later, termsOf(c), c.dataType, forgets * values) == "");
    const auto& dv = results[1].dv;
    const std::vector<float> earlier(dv.begin(), dv.begin() + static_cast<std::ptrdiff_t>(inRank * values));
    auto finite = c;  // gradients of values before the token depend on keys and betas only
    finite.dFinal.assign(finite.dFinal.size(), 0.0f);
    const LinearReference unpoisoned(finite, {});
    CHECK(farFrom(unpoisoned.dv, earlier, termsOf(c), c.dataType, 20 * values) == "");
  }
}

// Central differences of a loss that is linear in the outputs: sum of dOut out + sum of dFinal final.
TEST_CASE("gradients of the delta rule agree with finite differences") {
  const std::vector<int64_t> lengths{7};
  const seqpar::test::Seed seed;
  for (const int family : kFamilies) {
    for (const bool normalize : {false, true}) {
      auto c = makeCase(family, lengths);
      c.dk = 3;
      c.dv = 2;
      c.normalize = normalize;
      c.fill(seed);
      for (auto& number : c.beta) number = 0.25f + number / 2;  // steps stay inside
      for (size_t i = 0; i < c.k.size(); ++i) c.k[i] = c.k[i] == 0 ? 0.5f : c.k[i];
      CAPTURE(c.describe());
      const LinearReference expected(c, {});
      const auto loss = [&](const LinearCase& at) {
        const LinearReference r(at, {});
        double sum = 0;
        for (size_t i = 0; i < r.out.value.size(); ++i) sum += r.out.value[i] * static_cast<double>(at.dOut[i]);
        for (size_t i = 0; i < r.final.value.size(); ++i) sum += r.final.value[i] * static_cast<double>(at.dFinal[i]);
        return sum;
      };
      const auto differences = [&](std::vector<float> LinearCase::*member, const seqpar::test::Bounded& gradient) {
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
      differences(&LinearCase::beta, expected.dBeta);
      differences(&LinearCase::initial, expected.dInitial);
      if (c.hasGate()) differences(&LinearCase::gate, expected.dGate);
    }
  }
}

}  // namespace
