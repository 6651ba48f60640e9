// A few random cases on hosts; tests/gpu/random_attention.cpp runs many on GPUs.

#include "common/covering.h"
#include "random_run.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

void fewCases(RandomKind kind, uint64_t cases) {
  const seqpar::test::Seed seed;
  RandomRun run;
  run.kind = kind;
  run.seed = seed;
  run.cases = seqpar::test::kSanitized ? cases / 2 : cases;
  for (int ranks = 1; ranks <= kMostRandomRanks; ++ranks) {
    const RankThreads group(ranks);
    for (const auto& failure : runRandomCases(run, {&group, [] { return nullptr; }})) {
      CHECK(failure == "");
    }
  }
}

TEST_CASE("random cases of linear attention on hosts") {
  fewCases(RandomKind::Linear, 200);
}

TEST_CASE("random cases of softmax attention on hosts") {
  fewCases(RandomKind::Softmax, 200);
}

TEST_CASE("random cases of the short convolution on hosts") {
  fewCases(RandomKind::Conv, 200);
}

}  // namespace
