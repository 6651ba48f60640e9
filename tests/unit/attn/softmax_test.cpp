// Every algorithm of softmax attention with every feature, on ranks that are threads, against the definition in fp64.
#include <functional>
#include <numeric>

#include "attn/plan/registry.h"
#include "softmax_ranks.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

/// A feature: how it changes a problem of any size. Where it uses tokensOfRanks, that has a place for each rank.
struct Feature {
  const char* name;
  std::function<void(SoftmaxSpec&, std::mt19937_64&)> apply;
};

int64_t draw(std::mt19937_64& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

const std::vector<Feature>& features() {
  static const std::vector<Feature> all{
      {"full", [](SoftmaxSpec&, std::mt19937_64&) {}},
      {"causal", [](SoftmaxSpec& s, std::mt19937_64&) { s.mask = seqparAttnCausal; }},
      {"window",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.mask = static_cast<int>(random() % 2);
         s.windowLeft = draw(random, 0, s.tokens / 2);
         if (random() % 2 == 0) s.windowRight = draw(random, 0, s.tokens / 3);
       }},
      {"packed",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.batch = 1;
         s.mask = static_cast<int>(random() % 2);
         s.bounds = {0, s.tokens};
         for (int i = 0; i < 4; ++i) s.bounds.push_back(draw(random, 0, s.tokens));
         std::sort(s.bounds.begin(), s.bounds.end());
       }},
      {"gqa",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.heads = 6;
         s.kvHeads = 2;
         s.mask = seqparAttnCausal;
       }},
      {"mqa",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.heads = 3;
         s.kvHeads = 1;
       }},
      {"softcap",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.softcap = 1.5f;
         s.mask = seqparAttnCausal;
       }},
      {"sinks",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.sinks = true;
         s.mask = seqparAttnCausal;
       }},
      {"cross",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.kvTokens = draw(random, 1, 2 * s.tokens);
         s.mask = static_cast<int>(random() % 2);
       }},
      {"bf16", [](SoftmaxSpec& s, std::mt19937_64&) { s.type = seqparBfloat16; }},
      {"fp16",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.type = seqparFloat16;
         s.mask = seqparAttnCausal;
       }},
      {"bhsd", [](SoftmaxSpec& s, std::mt19937_64&) { s.headsFirst = true; }},
      {"dims",
       [](SoftmaxSpec& s, std::mt19937_64&) {
         s.headDim = 5;
         s.valueDim = 9;
       }},
      {"layout",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.layoutKind = static_cast<int>(random() % 3);
         s.stripe = draw(random, 1, 5);
         s.mask = static_cast<int>(random() % 2);
         if (random() % 2 == 0) s.windowLeft = draw(random, 0, s.tokens);
       }},
      {"lengths",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         for (auto& length : s.tokensOfRanks) length = std::max<int64_t>(0, draw(random, -4, 21));
         s.tokens = std::accumulate(s.tokensOfRanks.begin(), s.tokensOfRanks.end(), int64_t{0});
         s.mask = static_cast<int>(random() % 2);
       }},
      {"few tokens",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.tokens = draw(random, 0, 4);
         s.mask = static_cast<int>(random() % 2);
         s.sinks = random() % 2 == 0;
       }},
      {"more heads",
       [](SoftmaxSpec& s, std::mt19937_64& random) {
         s.kvHeads = draw(random, 2, 5);
         s.heads = s.kvHeads * draw(random, 1, 3);
         s.mask = seqparAttnCausal;
       }},
      {"wire", [](SoftmaxSpec& s, std::mt19937_64&) { s.wireType = seqparBfloat16; }},
  };
  return all;
}

SoftmaxSpec drawSpec(std::mt19937_64& random, int ranks) {
  SoftmaxSpec s;
  s.batch = draw(random, 1, 2);
  s.heads = draw(random, 1, 4);
  s.kvHeads = s.heads;
  s.headDim = 8;
  s.valueDim = 8;
  s.tokens = draw(random, ranks, 12 * ranks + 9);
  return s;
}

/// Why the algorithm cannot do it; empty: it can.
std::string refusalOf(const seqpar::attn::AlgorithmRow& row, const SoftmaxSpec& spec, seqparComm_t comm) {
  auto desc = spec.desc();
  int ranks = 0;
  seqparCommCount(comm, &ranks);
  const auto layout = spec.layout(ranks);
  if (spec.layoutKind >= 0) desc.layout = &layout;
  return row.refuses(seqpar::attn::readProblem("test", &desc, comm));
}

TEST_CASE("softmax attention: every algorithm with every feature", "[softmax]") {
  const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
  const RankThreads group(ranks);
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || (row.id == seqparAttnLocal && ranks > 1)) continue;
    for (const auto& feature : features()) {
      SoftmaxSpec spec = drawSpec(random, ranks);
      const std::string name = feature.name;
      if (name == "lengths") spec.tokensOfRanks.resize(static_cast<size_t>(ranks));
      feature.apply(spec, random);
      spec.algorithm = row.id;
      RunOptions options;
      options.onStream = random() % 2 == 0;
      options.ownWorkspace = random() % 2 == 0;
      options.rounds = 1 + static_cast<int>(random() % 2);
      CAPTURE(seed, ranks, row.name, feature.name, options.onStream, options.rounds, spec.text());
      const auto said = runCase(SoftmaxCase(spec, random()), &group, options);
      const auto refusal = refusalOf(row, spec, group[0]);
      if (refusal.empty()) {
        CHECK(said == "");
      } else {  // in words, with what can
        CHECK_THAT(said, Catch::Contains(row.name + std::string("), which ") + refusal + "; expected one that can: "));
      }
    }
  }
}

TEST_CASE("softmax attention: more tokens than a tile of the host kernel has", "[softmax]") {
  const int ranks = GENERATE(1, 3);
  const RankThreads group(ranks);
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (const int algorithm : {seqparAttnRing, seqparAttnUlysses}) {
    for (const int shape : {0, 1, 2, 3}) {
      SoftmaxSpec s;
      s.tokens = draw(random, 1030, 1500);
      s.heads = s.kvHeads = ranks;
      if (shape == 3) s.heads *= 2;
      s.headDim = s.valueDim = 3;
      s.algorithm = algorithm;
      s.mask = shape == 0 ? seqparAttnFull : seqparAttnCausal;
      if (shape == 2) s.windowLeft = draw(random, 100, 700);
      if (shape == 1) s.type = seqparBfloat16;
      CAPTURE(seed, ranks, s.text());
      CHECK(runCase(SoftmaxCase(s, random()), &group) == "");
    }
  }
}

}  // namespace
