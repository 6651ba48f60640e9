// The input gate of linear attention: S_t = A_t S_(t-1) + b_t k_t v_t^T.
#include <numeric>
#include <random>

#include "base/convert.h"
#include "linear_check.h"

namespace {

using namespace seqpar::attn::test;
using seqpar::test::DecayStrength;

constexpr int kFamilies[] = {seqparAttnGla, seqparAttnScalar, seqparAttnFixed, seqparAttnSum};

std::vector<float> rounded(const std::vector<float>& numbers, int type) {
  const auto as = static_cast<seqparDataType_t>(type);
  std::vector<std::byte> bytes(numbers.size() * seqpar::sizeOf(as));
  seqpar::fromFloat(numbers.data(), bytes.data(), as, numbers.size());
  std::vector<float> back(numbers.size());
  seqpar::toFloat(bytes.data(), as, back.data(), numbers.size());
  return back;
}

std::vector<float> gatesOf(const LinearCase& c, int type, std::mt19937& random) {
  std::uniform_real_distribution<float> draw(-1, 2);
  std::vector<float> gates(c.batch * c.tokens * c.heads);
  for (float& gate : gates) gate = random() % 8 == 0 ? 0 : draw(random);
  return rounded(gates, type);
}

/// x[i] times the gate of its row of `width` elements.
std::vector<float> timesGates(std::vector<float> x, const std::vector<float>& gates, size_t width) {
  for (size_t i = 0; i < x.size(); ++i) x[i] *= gates[i / width];
  return x;
}

std::vector<LinearResult> run(const RankThreads& ranks, const LinearCase& c, const std::vector<int64_t>& lengths,
                              const LinearOptions& options) {
  std::vector<LinearResult> results(lengths.size());
  const auto said = ranks.each(
      [&](int rank) { return runLinear(c, lengths, rank, ranks[rank], options, results[static_cast<size_t>(rank)]); });
  for (const auto& text : said) REQUIRE(text == "");
  return results;
}

/// The loss whose gradients with respect to the outputs are those of the case.
double lossOf(const LinearCase& c, const std::vector<int64_t>& lengths, const std::vector<LinearResult>& results) {
  const auto borders = bordersOf(lengths);
  double loss = 0;
  for (size_t r = 0; r < results.size(); ++r) {
    const auto dOut = tokensOf(c, c.dOut, c.heads * c.dv, borders[r], borders[r + 1]);
    for (size_t i = 0; i < dOut.size(); ++i)
      loss += static_cast<double>(dOut[i]) * static_cast<double>(results[r].out[i]);
  }
  const auto& final = results.back().final;
  for (size_t i = 0; c.hasFinalGradient && i < final.size(); ++i) {
    loss += static_cast<double>(c.dFinal[i]) * static_cast<double>(final[i]);
  }
  return loss;
}

/// A call with the gate gives the bits of an fp32 call with the products b v, rounded to the tensors' types.
void checkAgainstProducts(const LinearCase& c, const std::vector<int64_t>& lengths, const LinearOptions& options,
                          const std::vector<float>& gates, const RankThreads& ranks) {
  const auto found = run(ranks, c, lengths, options);
  LinearCase products = c;
  products.dataType = seqparFloat32;
  products.v = timesGates(c.v, gates, c.dv);
  LinearOptions without = options;
  without.inputGate = nullptr;
  const auto expected = run(ranks, products, lengths, without);
  const auto borders = bordersOf(lengths);
  for (size_t r = 0; r < found.size(); ++r) {
    CAPTURE(r);
    const auto same = [&](const std::vector<float>& a, const std::vector<float>& b) {
      const auto expect = rounded(b, c.dataType);
      return std::equal(a.begin(), a.end(), expect.begin(), expect.end());
    };
    CHECK(same(found[r].out, expected[r].out));
    CHECK(same(found[r].dq, expected[r].dq));
    CHECK(same(found[r].dk, expected[r].dk));
    CHECK(found[r].saved == expected[r].saved);
    CHECK(found[r].dGate == expected[r].dGate);
    const auto mine = tokensOf(c, gates, c.heads, borders[r], borders[r + 1]);
    CHECK(same(found[r].dv, timesGates(expected[r].dv, mine, c.dv)));
    const auto v = tokensOf(c, c.v, c.heads * c.dv, borders[r], borders[r + 1]);
    REQUIRE(found[r].dInput.size() == mine.size());
    for (size_t row = 0; row < mine.size(); ++row) {
      double sum = 0, magnitude = 0;
      for (size_t i = row * c.dv; i < (row + 1) * c.dv; ++i) {
        const double term = static_cast<double>(v[i]) * static_cast<double>(expected[r].dv[i]);
        sum += term;
        magnitude += std::abs(term);
      }
      const double rounding = options.inputGateType == seqparBfloat16 ? 0x1p-8 * std::abs(sum) : 0;
      const double error = std::abs(static_cast<double>(found[r].dInput[row]) - sum);
      CHECK(error <= rounding + 0x1p-22 * static_cast<double>(c.dv + 1) * magnitude + 1e-30);
    }
  }
}

TEST_CASE("an input gate equals values multiplied by it, in every family, algorithm and type") {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const auto lengths = GENERATE(std::vector<int64_t>{150}, std::vector<int64_t>{40, 0, 95});
  const RankThreads ranks(static_cast<int>(lengths.size()));
  for (const int family : kFamilies) {
    for (const int algorithm : {seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2, seqparAttnLocal}) {
      for (const int type : {seqparFloat32, seqparFloat16, seqparBfloat16}) {
        LinearCase c;
        c.family = family;
        c.tokens = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
        c.heads = 4;
        c.keyHeads = 2;
        c.dk = 8;
        c.dv = 6;
        c.dataType = type;
        c.strength = type == seqparFloat16 ? DecayStrength::Mixed : DecayStrength::Weak;
        if (type == seqparBfloat16) c.cuSeqlens = {0, 30, 30, static_cast<int64_t>(c.tokens)};
        c.batch = c.cuSeqlens.empty() ? 2 : 1;
        c.hasFinalGradient = type == seqparFloat32;
        c.fill(seed);
        LinearOptions options;
        options.algorithm = algorithm;
        options.inputGateType = type == seqparBfloat16 ? seqparBfloat16 : seqparFloat32;
        options.padding = type == seqparFloat16 ? 3 : 0;
        options.headsFirst = type == seqparFloat16;
        const auto gates = gatesOf(c, options.inputGateType, random);
        options.inputGate = &gates;
        CAPTURE(c.describe(), algorithm, lengths, seed);
        checkAgainstProducts(c, lengths, options, gates, ranks);
      }
    }
  }
}

TEST_CASE("gradients of the input gate are differences of the loss, which is linear in the gate") {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const std::vector<int64_t> lengths{70, 0, 45};
  const RankThreads ranks(3);
  for (const int family : kFamilies) {
    LinearCase c;
    c.family = family;
    c.tokens = 115;
    c.batch = 2;
    c.heads = 2;
    c.dk = 5;
    c.dv = 7;
    c.hasInitial = c.hasFinalGradient = true;
    c.fill(seed);
    LinearOptions options;
    options.algorithm = seqparAttnZeco;
    auto gates = gatesOf(c, seqparFloat32, random);
    options.inputGate = &gates;
    const auto before = run(ranks, c, lengths, options);
    const auto borders = bordersOf(lengths);
    const auto moved = gatesOf(c, seqparFloat32, random);
    double expected = 0, magnitude = 0;
    for (size_t r = 0; r < before.size(); ++r) {
      const auto step = tokensOf(c, moved, c.heads, borders[r], borders[r + 1]);
      const auto from = tokensOf(c, gates, c.heads, borders[r], borders[r + 1]);
      for (size_t i = 0; i < step.size(); ++i) {
        const double term = static_cast<double>(before[r].dInput[i]) * static_cast<double>(step[i] - from[i]);
        expected += term;
        magnitude += std::abs(term);
      }
    }
    const double loss = lossOf(c, lengths, before);
    gates = moved;
    const double change = lossOf(c, lengths, run(ranks, c, lengths, options)) - loss;
    CAPTURE(c.describe(), expected, change, magnitude, seed);
    CHECK(std::abs(change - expected) <= 1e-4 * magnitude);
  }
}

TEST_CASE("softmax attention and the delta families refuse an input gate") {
  for (const int family : {seqparAttnSoftmax, seqparAttnDelta, seqparAttnGatedDelta, seqparAttnKda}) {
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.family = family;
    desc.tokens = 4;
    desc.heads = desc.headDim = 2;
    desc.inputGate = 1;
    seqparAttnPlan_t plan = nullptr;
    CHECK(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparInvalidUsage);
    CHECK_THAT(seqparAttnGetLastError(), Catch::Contains("desc->inputGate is 1 with family"));
  }
}

}  // namespace
