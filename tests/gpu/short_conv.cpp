// gpu_short_conv RANKS [graph] [Catch's options]: the short convolution on GPU communicators with ranks as threads of
// this process, against its definition in fp64; with `graph` the calls are captured and replayed. Exit status 77
// without a GPU.
#define CATCH_CONFIG_RUNNER
#include "unit/attn/short_conv_check.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/draw_seed.h"
#include "gpu/support/placed_ranks.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

PlacedRun placed;

// Runs first in its process, before any convolution kernel is loaded: other ranks' exchanges wait on their GPUs while
// the last rank allocates memory and loads kernels. Unlike plans, which load cuDNN's kernels, Create needs no barrier
// for this.
TEST_CASE("a convolution waits for a late rank") {
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  const std::vector<int64_t> lengths(static_cast<size_t>(placed.ranks), 100);
  ConvCase c;
  c.tokens = lengths.size() * 100;
  c.channels = 64;
  c.fill(seed);
  const Placement& together = *all.placement();
  Placement apart = together;
  apart.barrier = [] {};
  apart.run = [&](int rank, const auto& calls) {
    auto said = together.run(rank, calls);
    together.barrier();  // the next free waits for the device, where other ranks may still have work
    return said;
  };
  ConvOptions options{.placement = &apart};
  options.beforeCreate = [](int rank) {
    if (rank == placed.ranks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  };
  CAPTURE(seed, placed.ranks);
  check(all.group(), c, lengths, options);
}

TEST_CASE("the short convolution on GPUs agrees with its definition") {
  PlacedRanks all(placed);
  const unsigned seed = seqpar::test::drawSeed();
  std::mt19937 random(seed);
  for (size_t width = 1; width <= SEQPAR_SHORT_CONV_WIDTH; ++width) {
    for (const bool packed : {false, true}) {
      ConvCase c;
      std::vector<int64_t> lengths;
      for (int r = 0; r < placed.ranks; ++r) {
        lengths.push_back(random() % 5 == 0 ? 0 : static_cast<int64_t>(random() % (random() % 3 == 0 ? 8 : 300)));
        c.tokens += static_cast<size_t>(lengths.back());
      }
      c.width = width;
      c.batch = packed ? 1 : 1 + random() % 2;
      c.channels = random() % 2 == 0 ? 1 + random() % 200 : 4 * (1 + random() % 200);
      c.silu = random() % 2 == 0;
      c.bias = random() % 2 == 0;
      c.type = static_cast<int>(random() % 3);
      c.weightType = static_cast<int>(random() % 3);
      if (packed) {
        c.cuSeqlens = {0, static_cast<int64_t>(c.tokens)};
        for (int i = 0; i < 4; ++i) c.cuSeqlens.push_back(static_cast<int64_t>(random() % (c.tokens + 1)));
        std::sort(c.cuSeqlens.begin(), c.cuSeqlens.end());
      }
      c.fill(static_cast<unsigned>(random()));
      CAPTURE(lengths, width, c.batch, c.channels, c.type, c.weightType, c.cuSeqlens, seed);
      check(all.group(), c, lengths, {.placement = all.placement()});
    }
  }
}

}  // namespace

int main(int count, char** words) {
  return runPlaced(count, words, placed);
}
