// gpu_softmax_attention RANKS [graph] [Catch's options]: every algorithm of softmax attention on GPU communicators with
// ranks as threads of this process, against the definition in fp64; with `graph` the calls are captured and replayed.
// With more ranks than GPUs, several share one. Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <tuple>

#include "common/draw_seed.h"
#include "gpu/support/caller_kernel.h"
#include "gpu/support/placed_ranks.h"
#include "unit/attn/softmax_features.h"
#include "unit/attn/softmax_ranks.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

PlacedRun placed;

/// Every algorithm with every feature that it has. `kernel` null: the library's block kernels.
void everyFeature(const seqparAttnKernel_t* kernel) {
  PlacedRanks all(placed);
  const uint64_t seed = seqpar::test::drawSeed();
  std::mt19937_64 random(seed);
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || (row.id == seqparAttnLocal && placed.ranks > 1)) continue;
    for (const auto& feature : features()) {
      SoftmaxSpec spec = drawSpec(random, placed.ranks);
      const std::string name = feature.name;
      if (name == "lengths") spec.tokensOfRanks.resize(static_cast<size_t>(placed.ranks));
      feature.apply(spec, random);
      spec.algorithm = row.id;
      spec.odd = kernel == nullptr && random() % 3 == 0;
      if (!refusalOf(row, spec, all.group()[0]).empty()) continue;
      RunOptions options;
      options.kernel = kernel;
      options.ownWorkspace = random() % 2 == 0;
      options.placement = all.placement();
      CAPTURE(seed, placed.ranks, row.name, name, spec.text());
      CHECK(runCase(SoftmaxCase(spec, random()), &all.group(), options) == "");
    }
  }
}

TEST_CASE("softmax attention on GPUs: every feature, small") {
  everyFeature(nullptr);
}

TEST_CASE("softmax attention on GPUs: every feature, a kernel of the caller") {
  std::atomic<int> calls{0};
  const auto kernel = callerKernel(calls);
  everyFeature(&kernel);
  CHECK(calls > 0);
}

/// Problems that cuDNN gets, at least on some ranks.
std::vector<std::pair<const char*, SoftmaxSpec>> largeSpecs() {
  std::vector<std::pair<const char*, SoftmaxSpec>> all;
  SoftmaxSpec base;
  base.tokens = 256 * std::max(2, placed.ranks);
  base.heads = base.kvHeads = 2;
  base.headDim = base.valueDim = 64;
  base.type = seqparBfloat16;
  const auto add = [&](const char* name, const std::function<void(SoftmaxSpec&)>& change) {
    all.emplace_back(name, base);
    change(all.back().second);
  };
  add("full", [](SoftmaxSpec&) {});
  add("causal, batch 2", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.batch = 2;
  });
  add("odd length, causal", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.tokens -= 27;
    s.type = seqparFloat16;
  });
  add("addresses that are no multiples of 16", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.batch = 2;
    s.odd = true;
  });
  add("one head, odd length, odd addresses", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.heads = s.kvHeads = 1;
    s.tokens -= 27;
    s.odd = true;
  });
  add("one head, odd length", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.heads = s.kvHeads = 1;
    s.tokens -= 27;
  });
  add("columns of 64 modulo 128", [](SoftmaxSpec& s) { s.tokens += 64 * placed.ranks; });
  add("window", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.windowLeft = 200;
  });
  add("window to both sides", [](SoftmaxSpec& s) {
    s.windowLeft = 180;
    s.windowRight = 77;
  });
  add("packed", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.bounds = {0, 1, 130, 300, 302, 439};
    for (int64_t at = 439 + 64; at < s.tokens; at += 97) s.bounds.push_back(at);
    s.bounds.push_back(s.tokens);
  });
  add("packed, full, gqa", [](SoftmaxSpec& s) {
    s.heads = 4;
    s.bounds = {0, 137, 300, 310, 400, 500, s.tokens};
  });
  add("gqa, causal, d 128", [](SoftmaxSpec& s) {
    s.heads = 4;
    s.mask = seqparAttnCausal;
    s.headDim = s.valueDim = 128;
  });
  add("sinks, heads first", [](SoftmaxSpec& s) {
    s.mask = seqparAttnCausal;
    s.sinks = true;
    s.headsFirst = true;
  });
  add("cross", [](SoftmaxSpec& s) {
    s.kvTokens = s.tokens + 300;
    s.mask = seqparAttnCausal;
  });
  add("diagonals in two", [](SoftmaxSpec& s) {
    s.tokens = 4096;  // enough rows on two ranks
    s.mask = seqparAttnCausal;
    s.heads = s.kvHeads = 1;
  });
  add("d 256", [](SoftmaxSpec& s) { s.headDim = s.valueDim = 256; });
  for (const auto& [name, keys, values] : {std::tuple{"d 256, documents", 256, 256},
                                           {"d 256, values of 128, documents", 256, 128},
                                           {"d 192, values of 128, documents", 192, 128}}) {
    add(name, [keys = keys, values = values](SoftmaxSpec& s) {
      s.heads = 4;
      s.kvHeads = 2;
      s.headDim = keys;
      s.valueDim = values;
      s.mask = seqparAttnCausal;
      s.bounds = {0, 304, 400, s.tokens};
    });
  }
  return all;
}

void everyAlgorithm(const SoftmaxSpec& base) {
  PlacedRanks all(placed);
  const uint64_t seed = seqpar::test::drawSeed();
  std::mt19937_64 random(seed);
  std::unique_ptr<SoftmaxCase> problem;
  std::unique_ptr<SoftmaxAnswer> answer;
  for (const auto& row : seqpar::attn::algorithms()) {
    SoftmaxSpec spec = base;
    spec.algorithm = row.id;
    if (!row.softmax || (row.id == seqparAttnLocal && placed.ranks > 1)) continue;
    if (!refusalOf(row, spec, all.group()[0]).empty()) continue;
    if (!problem) {
      problem = std::make_unique<SoftmaxCase>(spec, random());
      answer = std::make_unique<SoftmaxAnswer>(*problem);
    }
    problem->spec = spec;
    RunOptions options;
    options.rounds = 2;
    options.placement = all.placement();
    CAPTURE(seed, placed.ranks, row.name, spec.text());
    CHECK(runCase(*problem, &all.group(), options, answer.get()) == "");
  }
}

TEST_CASE("softmax attention on GPUs: more heads of all sequences than a grid's second dimension") {
  SoftmaxSpec spec;
  spec.batch = 1100;
  spec.heads = 60;
  spec.kvHeads = 60;
  spec.tokens = 3 * placed.ranks;
  spec.headDim = spec.valueDim = 4;
  spec.mask = seqparAttnCausal;
  PlacedRanks all(placed);
  RunOptions options;
  options.placement = all.placement();
  const uint64_t seed = seqpar::test::drawSeed();
  CAPTURE(seed, spec.text());
  CHECK(runCase(SoftmaxCase(spec, seed), &all.group(), options) == "");
}

TEST_CASE("softmax attention on GPUs: every algorithm, large") {
  for (const auto& [name, base] : largeSpecs()) {
    DYNAMIC_SECTION(name) {
      everyAlgorithm(base);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  return runPlaced(count, words, placed);
}
