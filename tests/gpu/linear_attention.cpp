// gpu_linear_attention RANKS [graph] [Catch's options]: linear attention through the plan on GPU communicators with
// ranks as threads of this process, against the recurrence in fp64; with `graph` the calls are captured and replayed.
// Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <random>
#include <string>

#include "common/draw_seed.h"
#include "gpu/support/placed_ranks.h"
#include "kernels/attn/linear/pairs.h"
#include "unit/attn/linear_input_gate.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)
using seqpar::test::DecayStrength;

PlacedRun placed;

LinearCase makeCase(int family, const std::vector<int64_t>& lengths, int type, std::mt19937& random) {
  LinearCase c;
  c.family = family;
  for (const auto length : lengths) c.tokens += static_cast<size_t>(length);
  c.heads = 4;
  c.keyHeads = random() % 2 == 0 ? 4 : 2;
  const bool wide = random() % 6 == 0;  // as in models with GLA and RetNet
  c.dk = wide ? 256 : 16 << random() % 4;
  c.dv = 16 * (wide ? 17 + random() % 16 : 1 + random() % 5);
  c.dataType = type;
  c.gateType =
      c.perChannel() && !c.hasBeta() && type == seqparBfloat16 && random() % 2 == 0 ? seqparBfloat16 : seqparFloat32;
  c.strength = static_cast<DecayStrength>(random() % 3);
  c.hasInitial = random() % 2 == 0;
  c.hasFinalGradient = random() % 2 == 0;
  return c;
}

std::vector<int64_t> drawLengths(std::mt19937& random) {
  std::vector<int64_t> lengths;
  for (int r = 0; r < placed.ranks; ++r) {
    lengths.push_back(random() % 5 == 0 ? 0 : static_cast<int64_t>(random() % (random() % 3 == 0 ? 8 : 300)));
  }
  return lengths;
}

/// Compares two steps with the recurrence: without and with states that the forward leaves for the backward.
void checkWithAndWithoutReserve(PlacedRanks& all, const LinearCase& c, const std::vector<int64_t>& lengths,
                                unsigned seed, int algorithm = seqparAttnAuto) {
  const auto reference = referenceOf(c, lengths);
  for (const bool reserve : {false, true}) {
    LinearOptions options;
    options.placement = all.placement();
    options.repeats = 2;
    options.reserve = reserve;
    options.algorithm = algorithm;
    CAPTURE(c.describe(), lengths, algorithm, reserve, seed);
    check(all.group(), {c, lengths, options, reference, termsOfType(c.dataType)});
  }
}

TEST_CASE("linear attention on GPUs agrees with the recurrence") {
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (const int family : seqpar::test::linearFamilies()) {
    for (const int type : {seqparFloat32, seqparFloat16, seqparBfloat16}) {
      const auto lengths = drawLengths(random);
      auto c = makeCase(family, lengths, type, random);
      c.batch = 1 + random() % 2;
      c.fill(random());
      LinearOptions options;
      options.placement = all.placement();
      options.headsFirst = random() % 2 == 0;
      options.padding = random() % 2 == 0 ? 8 : 0;
      options.reserve = random() % 2 == 0;
      constexpr int kAlgorithms[] = {seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};
      options.algorithm = kAlgorithms[random() % 3];
      CAPTURE(c.describe(), lengths, options.algorithm, options.headsFirst, options.padding, options.reserve, seed);
      check(all.group(), c, lengths, options, termsOfType(type), leastOfStates(c));
    }
  }
}

TEST_CASE("long sequences on GPUs are cut into segments") {
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (const int family : seqpar::test::linearFamilies()) {
    for (const auto strength : {DecayStrength::Weak, DecayStrength::Strong}) {
      std::vector<int64_t> lengths;
      for (int r = 0; r < placed.ranks; ++r) lengths.push_back(512 + static_cast<int64_t>(random() % 700));
      auto c = makeCase(family, lengths, seqparBfloat16, random);
      c.heads = c.keyHeads = 2;
      c.dk = 128 - 16 * (random() % 3);
      c.dv = 16 * (1 + random() % 9);
      c.strength = strength;
      c.fill(random());
      checkWithAndWithoutReserve(all, c, lengths, seed);
    }
  }
}

/// A rank with these heads and `tokens` tokens computes gradients by groups of heads.
template <class Case>
void requireGroups(const Case& c, int64_t tokens) {
  seqpar::attn::LinearProblem shape;
  shape.gate = seqpar::attn::Gate::Token;
  shape.batch = 1;
  shape.tokens = tokens;
  shape.heads = static_cast<int>(c.heads);
  shape.qkHeads = static_cast<int>(c.keyHeads);
  shape.dk = static_cast<int>(c.dk);
  shape.dv = static_cast<int>(c.dv);
  REQUIRE(seqpar::attn::formsGroups(shape));
}

/// Shapes for which the backward computes groups of heads that share keys (formsGroups()). On one rank `reserve` then
/// leaves no maps of segments.
/// With enough chunks for segments of a chain. Maps or sequences give their first states.
TEST_CASE("chains of the delta rule on GPUs are cut into segments") {
  if (placed.ranks > 2) return;
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (const int family : {seqparAttnDelta, seqparAttnGatedDelta}) {
    for (const bool packed : {false, true}) {
      std::vector<int64_t> lengths;
      for (int r = 0; r < placed.ranks; ++r) lengths.push_back(64 * 45 + static_cast<int64_t>(random() % 300));
      auto c = makeCase(family, lengths, seqparBfloat16, random);
      c.heads = c.keyHeads = 2;
      c.dk = 128 - 16 * (random() % 3);
      c.dv = 16 * (1 + random() % 9);
      c.normalize = true;
      const auto tokens = static_cast<int64_t>(c.tokens);
      if (packed) c.cuSeqlens = {0, tokens / 4, tokens / 2, tokens / 2 + 1, tokens};
      c.fill(random());
      checkWithAndWithoutReserve(all, c, lengths, seed);
    }
  }
}

TEST_CASE("groups of heads that share keys on GPUs, with and without states of the forward") {
  if (placed.ranks > 2) return;  // the reference would take long
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (const int family : {seqparAttnScalar, seqparAttnFixed, seqparAttnSum}) {
    constexpr int kKeyHeads = 12, kGroup = 4, kChunks = 9;
    std::vector<int64_t> lengths;
    for (int r = 0; r < placed.ranks; ++r) lengths.push_back(64 * kChunks + static_cast<int64_t>(random() % 64));
    auto c = makeCase(family, lengths, seqparBfloat16, random);
    c.keyHeads = kKeyHeads;
    c.heads = c.keyHeads * kGroup;
    const bool isLong = random() % 2 == 0;
    c.dk = 16 * (1 + random() % 8) + (isLong ? 128 : 0);
    c.dv = random() % 2 == 0 ? 64 : isLong ? 128 : seqpar::attn::kWideColumns;
    c.fill(random());
    requireGroups(c, lengths.front());
    checkWithAndWithoutReserve(all, c, lengths, seed);
  }
}

/// Shapes that form groups with one segment per head: pass 1 of ZECO leaves out tokens that decays have forgotten. With
/// `reserve` the forward keeps the states of chunks.
TEST_CASE("groups of many heads on GPUs, of which the next rank needs some tokens") {
  if (placed.ranks > 2) return;
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  constexpr int kKeyHeads = 26, kGroup = 4, kTokens = 512;
  std::vector<int64_t> lengths;
  for (int r = 0; r < placed.ranks; ++r) lengths.push_back(kTokens + static_cast<int64_t>(random() % 64));
  auto c = makeCase(seqparAttnScalar, lengths, seqparBfloat16, random);
  c.keyHeads = kKeyHeads;
  c.heads = c.keyHeads * kGroup;
  const int shape = random() % 3;
  c.dk = 16 * (1 + random() % 8) + (shape == 2 ? 128 : 0);
  c.dv = shape == 1 ? seqpar::attn::kWideColumns : 64;
  c.fill(random());
  requireGroups(c, lengths.front());
  constexpr int kAlgorithms[] = {seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};
  checkWithAndWithoutReserve(all, c, lengths, seed, kAlgorithms[random() % 3]);
}

/// Shapes that form groups with one segment per head, and outputs of heads in two parts: with two ranks ZECO computes
/// them before the incoming state is known, and adds its contribution.
TEST_CASE("groups of wide heads on GPUs, of which outputs are in two parts") {
  if (placed.ranks > 2) return;
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  constexpr int kHeads = 12, kTokens = 32 * 64;
  std::vector<int64_t> lengths;
  for (int r = 0; r < placed.ranks; ++r) lengths.push_back(kTokens + static_cast<int64_t>(random() % 64));
  auto c = makeCase(random() % 2 == 0 ? seqparAttnScalar : seqparAttnFixed, lengths, seqparBfloat16, random);
  c.keyHeads = c.heads = kHeads;
  c.dk = 144;
  c.dv = 256;
  c.fill(random());
  requireGroups(c, lengths.front());
  checkWithAndWithoutReserve(all, c, lengths, seed);
}

/// Shapes with channel decays of which the backward processes chunks in parallel.
TEST_CASE("wide heads with channel decays on GPUs") {
  if (placed.ranks > 2) return;
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  std::vector<int64_t> lengths;
  for (int r = 0; r < placed.ranks; ++r) lengths.push_back(14 * 64 + static_cast<int64_t>(random() % 64));
  auto c = makeCase(seqparAttnGla, lengths, seqparBfloat16, random);
  c.keyHeads = c.heads = 8;
  c.dk = 144 + 16 * (random() % 8);
  c.dv = 256;
  c.fill(random());
  checkWithAndWithoutReserve(all, c, lengths, seed);
}

/// Shapes with channel decays and a forward in chains: a head has one part, or several that start from maps of pieces.
TEST_CASE("chains of wide heads with channel decays on GPUs") {
  if (placed.ranks > 3) return;
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (const auto& [heads, chunks] : {std::pair{20, 5}, {10, 17}}) {
    std::vector<int64_t> lengths;
    for (int r = 0; r < placed.ranks; ++r) lengths.push_back(chunks * 64 + static_cast<int64_t>(random() % 64));
    auto c = makeCase(seqparAttnGla, lengths, seqparBfloat16, random);
    c.keyHeads = c.heads = heads;
    c.dk = 144;
    c.dv = 256;
    c.fill(random());
    checkWithAndWithoutReserve(all, c, lengths, seed);
  }
}

/// Shapes with which a rank has one segment and many heads: the outputs are computed as on a single rank, and the last
/// scan of the backward overlaps with the gradients' sweep.
TEST_CASE("many heads on GPUs in one segment") {
  if (placed.ranks > 2) return;
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (const auto& [dk, dv] : {std::pair{128, 80}, {112, 64}, {256, 64}}) {
    constexpr int kKeyHeads = 26, kGroup = 4;
    std::vector<int64_t> lengths;
    for (int r = 0; r < placed.ranks; ++r) lengths.push_back(64 * 2 + static_cast<int64_t>(random() % 64));
    auto c = makeCase(random() % 2 == 0 ? seqparAttnScalar : seqparAttnFixed, lengths, seqparBfloat16, random);
    c.keyHeads = kKeyHeads;
    c.heads = c.keyHeads * kGroup;
    c.dk = dk;
    c.dv = dv;
    c.fill(random());
    checkWithAndWithoutReserve(all, c, lengths, seed);
  }
}

/// Most addresses of rows are not multiples of 16 bytes.
TEST_CASE("rows at odd addresses on GPUs are read and written, or refused by name") {
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  PlacedRanks all(placed);
  for (const int family : seqpar::test::linearFamilies()) {
    for (const int type : {seqparFloat32, random() % 2 == 0 ? seqparFloat16 : seqparBfloat16}) {
      const std::vector<int64_t> lengths(static_cast<size_t>(placed.ranks), 70);
      auto c = makeCase(family, lengths, type, random);
      c.fill(random());
      const bool half = type != seqparFloat32 && !c.hasBeta();  // kernels of units of 16 bytes
      const auto isRefused = [&](const std::string& name) {
        const bool gate = name == "gate" || name == "dGate";
        return half && name != "" && (!gate || c.perChannel());
      };
      const auto reference = referenceOf(c, lengths);
      for (const char* odd : {"q", "k", "v", "gate", "dOut", "out", "dq", "dk", "dv", "dGate", ""}) {
        LinearOptions options;
        options.placement = all.placement();
        options.odd = odd;
        CAPTURE(c.describe(), odd, seed);
        if (!isRefused(odd)) {  // also after a refused call
          check(all.group(), {c, lengths, options, reference, termsOfType(type), leastOfStates(c)});
          continue;
        }
        const std::string argument = options.odd == "gate" ? "gates[0]" : options.odd == "dGate" ? "dGates[0]" : odd;
        const auto name = "args->" + argument + " is at ";
        std::vector<LinearResult> results(lengths.size());
        const auto said = all.group().each([&](int rank) {
          return runLinear(c, lengths, rank, all.group()[rank], options, results[static_cast<size_t>(rank)]);
        });
        for (const auto& text : said) {
          CAPTURE(text);
          CHECK(text.find(name) != std::string::npos);
          CHECK(text.find("expected multiples of 16 bytes") != std::string::npos);
        }
      }
    }
  }
}

/// `given`: sequences start with the caller's states, and their gradients are computed.
void checkPacked(bool given) {
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (const int family : seqpar::test::linearFamilies()) {
    const auto lengths = drawLengths(random);
    auto c = makeCase(family, lengths, given && random() % 2 == 0 ? seqparFloat32 : seqparBfloat16, random);
    c.hasInitial = given && random() % 4 != 0;
    c.cuSeqlens = {0, static_cast<int64_t>(c.tokens)};
    for (int i = 0; i < 4; ++i) c.cuSeqlens.push_back(static_cast<int64_t>(random() % (c.tokens + 1)));
    std::sort(c.cuSeqlens.begin(), c.cuSeqlens.end());
    c.fill(random());
    LinearOptions options;
    options.placement = all.placement();
    options.initialGradient = given;
    options.reserve = random() % 2 == 0;
    constexpr int kAlgorithms[] = {seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};
    options.algorithm = kAlgorithms[random() % 3];
    CAPTURE(c.describe(), lengths, c.cuSeqlens, options.algorithm, options.reserve, seed);
    check(all.group(), c, lengths, options, termsOfType(c.dataType));
  }
}

TEST_CASE("packed sequences on GPUs have separate states") {
  checkPacked(false);
}

TEST_CASE("packed sequences on GPUs start from initial states") {
  checkPacked(true);
}

/// Whether the passes of compute capability 9.0 apply an input gate themselves, so that products are not rounded.
bool fuses(const LinearCase& c) {
  return c.dataType == seqparBfloat16 && !c.perChannel() && c.dk > 64 && c.dk <= 128 && c.dv <= 128;
}

TEST_CASE("an input gate on GPUs equals values multiplied by it") {
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (const int family : seqpar::test::linearFamilies()) {
    for (const bool usual : {false, false, false, true, true}) {
      const int type = usual ? seqparBfloat16 : static_cast<int>(random() % 3);
      auto lengths = drawLengths(random);
      if (random() % 3 == 0) lengths.back() += 1200;
      auto c = makeCase(family, lengths, type, random);
      if (c.hasBeta()) continue;  // no input gate
      if (usual) {
        c.dk = 128 - 16 * (random() % 3);
        c.dv = random() % 3 == 0 ? 16 * (1 + random() % 8) : 64;
      }
      c.batch = 1 + random() % 2;
      if (c.batch == 1 && random() % 2 == 0) {
        c.cuSeqlens = {0, static_cast<int64_t>(c.tokens / 3), static_cast<int64_t>(c.tokens)};
      }
      c.fill(random());
      LinearOptions options;
      options.placement = all.placement();
      options.headsFirst = random() % 2 == 0;
      options.padding = random() % 2 == 0 ? 8 : 0;
      options.reserve = random() % 2 == 0;
      options.inputGateType = random() % 2 == 0 ? seqparBfloat16 : seqparFloat32;
      constexpr int kAlgorithms[] = {seqparAttnZeco, seqparAttnLasp1, seqparAttnLasp2};
      options.algorithm = kAlgorithms[random() % 3];
      const auto gates = gatesOf(c, options.inputGateType, random);
      options.inputGate = &gates;
      CAPTURE(c.describe(), lengths, c.cuSeqlens, options.algorithm, options.headsFirst, options.padding,
              options.reserve, options.inputGateType, seed);
      if (!fuses(c)) {
        checkAgainstProducts(c, lengths, options, gates, all.group());
        continue;
      }
      auto products = c;
      products.v = timesGates(c.v, gates, c.dv);
      auto reference = referenceOf(products, lengths);
      const auto dInput = addInputGate(reference, c, gates);
      check(all.group(), {c, lengths, options, reference, termsOfType(c.dataType), leastOfStates(c), -1, &dInput});
    }
  }
}

}  // namespace

int main(int count, char** words) {
  const int result = runPlaced(count, words, placed);
  std::printf("seconds: references %.1f, calls %.1f, the longest %.2f\n", linearTimes.references, linearTimes.calls,
              linearTimes.longestCall);
  return result;
}
