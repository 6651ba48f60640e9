// gpu_random_attention KIND [--cases N] [--seed S] [--case I] [--most-ranks N]: random problems of linear attention
// ("linear"), softmax attention ("softmax") or the short convolution ("conv") on 1 to 4 ranks as threads that share
// GPUs, against fp64. Prints the seed; --seed with --case repeats one case. --most-ranks 1 is for compute-sanitizer,
// which runs one kernel at a time, so that ranks on one GPU wait in vain. Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "common/draw_seed.h"
#include "gpu/support/placed_ranks.h"
#include "unit/attn/random_run.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

RandomRun run;
int gpus = 0, mostRanks = kMostRandomRanks;

TEST_CASE("random cases on GPUs") {
  for (int ranks = 1; ranks <= mostRanks; ++ranks) {
    if (run.only >= 0 && 1 + run.only % kMostRandomRanks != ranks) continue;
    PlacedRun placed;
    placed.gpus = gpus;
    placed.ranks = ranks;
    PlacedRanks all(placed);
    const auto failures = runRandomCases(run, {&all.group(), [&] { return all.placement(); }});
    const auto& times = randomTimes();
    std::printf("%d ranks: %llu cases so far; seconds: calls %.1f, comparisons %.1f, waiting %.1f\n", ranks,
                static_cast<unsigned long long>(times.cases), times.running, times.comparing, times.waiting);
    std::fflush(stdout);
    for (const auto& failure : failures) CHECK(failure == "");
  }
}

int usage(const char* program) {
  std::printf("usage: %s linear|softmax|conv [--cases N] [--seed S] [--case I] [--most-ranks N]\n", program);
  return 2;
}

}  // namespace

int main(int count, char** words) {
  gpus = seqpar::test::requireGpus(1);
  if (count < 2 || count % 2 != 0) return usage(words[0]);
  run.onDevice = true;
  run.seed = seqpar::test::drawSeed();
  run.cases = 400;
  run.threads = std::max(1U, std::thread::hardware_concurrency() - 2);
  try {
    run.kind = randomKind(words[1]);
    for (int i = 2; i + 1 < count; i += 2) {
      const std::string option = words[i];
      const auto value = std::stoull(words[i + 1]);
      if (option == "--cases") {
        run.cases = value;
      } else if (option == "--seed") {
        run.seed = value;
      } else if (option == "--case") {
        run.only = static_cast<int64_t>(value);
      } else if (option == "--most-ranks") {
        mostRanks = static_cast<int>(std::min<unsigned long long>(value, kMostRandomRanks));
      } else {
        return usage(words[0]);
      }
    }
  } catch (const std::logic_error& error) {  // invalid_argument, out_of_range
    std::printf("%s\n", error.what());
    return usage(words[0]);
  }
  if (run.only >= 0) run.cases = static_cast<uint64_t>(run.only) + 1;
  std::printf("%s, seed %llu, %llu cases on %d GPUs\n", words[1], static_cast<unsigned long long>(run.seed),
              static_cast<unsigned long long>(run.cases), gpus);
  return Catch::Session().run(1, words);
}
