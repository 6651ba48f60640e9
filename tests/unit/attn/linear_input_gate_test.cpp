// The input gate of linear attention: S_t = A_t S_(t-1) + b_t k_t v_t^T.
#include <numeric>
#include <random>

#include "linear_input_gate.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;
using seqpar::test::DecayStrength;

/// Families that take an input gate: those without a beta; or the others, softmax attention among them.
std::vector<int> familiesThat(bool takeOne) {
  std::vector<int> ids;
  if (!takeOne) ids.push_back(seqparAttnSoftmax);
  for (const int family : seqpar::test::linearFamilies()) {
    LinearCase c;
    c.family = family;
    if (c.hasBeta() != takeOne) ids.push_back(family);
  }
  return ids;
}

/// The loss that has the gradients of the case with respect to the outputs.
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

TEST_CASE("an input gate equals values multiplied by it, in every family, algorithm and type") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  const auto lengths = GENERATE(std::vector<int64_t>{150}, std::vector<int64_t>{40, 0, 95});
  const RankThreads ranks(static_cast<int>(lengths.size()));
  for (const int family : familiesThat(true)) {
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
        CAPTURE(c.describe(), algorithm, lengths);
        checkAgainstProducts(c, lengths, options, gates, ranks);
      }
    }
  }
}

TEST_CASE("gradients of the input gate are differences of the loss, which is linear in the gate") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  const std::vector<int64_t> lengths{70, 0, 45};
  const RankThreads ranks(3);
  for (const int family : familiesThat(true)) {
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
    const auto before = runAll(ranks, c, lengths, options);
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
    const double change = lossOf(c, lengths, runAll(ranks, c, lengths, options)) - loss;
    CAPTURE(c.describe(), expected, change, magnitude);
    CHECK(std::abs(change - expected) <= 1e-4 * magnitude);
  }
}

TEST_CASE("softmax attention and families with a beta refuse an input gate") {
  for (const int family : familiesThat(false)) {
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
