// gpu_mask_attention RANKS [SECONDS [SEED [TEST]]]: masks as slices on GPU communicators, with ranks as threads of this
// process, against the definition in fp64: the usual masks with ALLGATHER_KV and RING, then random slices with every
// algorithm for SECONDS, then chunked prefill for SECONDS. SEED repeats the cases of a run; TEST is Catch2's name of a
// test. Exit status 77 without a GPU.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <map>

#include "gpu/support/placed_ranks.h"
#include "seqpar/attn_layout.h"
#include "unit/attn/prefill_case.h"
#include "unit/attn/softmax_features.h"
#include "unit/attn/softmax_ranks.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

PlacedRun placed;
double seconds = 60;
uint64_t given = 0;  ///< 0: a random seed

uint64_t seedOf() {
  return given != 0 ? given : std::random_device{}();
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Slices = std::vector<seqparAttnSlice_t>;

constexpr int64_t kTokens = 2048;

std::vector<std::pair<const char*, Slices>> usualMasks() {
  Slices packed, video, some, shared{SEQPAR_ATTN_SLICE_CAUSAL(0, 500, 0, 500)};
  for (int64_t at = 0, length = 150; at < kTokens; at += length, length += 41) {
    const int64_t end = std::min(kTokens, at + length);
    packed.push_back(SEQPAR_ATTN_SLICE_CAUSAL(at, end, at, end));
  }
  for (int64_t end = 256; end <= kTokens; end += 256) video.push_back(SEQPAR_ATTN_SLICE_FULL(end - 256, end, 0, end));
  for (int64_t at = 0; at < kTokens; at += 128) some.push_back(SEQPAR_ATTN_SLICE_FULL(0, kTokens, at, at + 20));
  for (int64_t at = 500; at < kTokens; at += 258) {
    shared.push_back(SEQPAR_ATTN_SLICE_FULL(at, at + 258, 0, 500));
    shared.push_back(SEQPAR_ATTN_SLICE_CAUSAL(at, at + 258, at, at + 258));
  }
  return {{"video", video},
          {"shared prefix", shared},
          {"packed", packed},
          {"some keys of each block", some},  // a ring sends up to 16 ranges of a shard
          {"prefix-LM", {SEQPAR_ATTN_SLICE_FULL(0, 512, 0, 512), SEQPAR_ATTN_SLICE_CAUSAL(512, kTokens, 0, kTokens)}}};
}

/// Gives the problem the layout that balances its mask.
void solve(SoftmaxSpec& s, int ranks) {
  const auto desc = s.desc();
  std::vector<int64_t> bounds(2 * static_cast<size_t>(ranks));
  std::vector<int> owners(bounds.size());
  int64_t pieces = 0;
  REQUIRE(seqparAttnSolveLayout(&desc, ranks, nullptr, bounds.data(), owners.data(), &pieces) == seqparSuccess);
  s.layoutKind = seqparPieces;
  s.pieceBounds.assign(bounds.begin(), bounds.begin() + pieces + 1);
  s.pieceOwners.assign(owners.begin(), owners.begin() + pieces);
}

TEST_CASE("masks as slices on GPUs") {
  const double start = now();
  PlacedRanks all(placed);
  const uint64_t seed = seedOf();
  std::mt19937_64 random(seed);
  int cases = 0;
  const auto run = [&](const SoftmaxSpec& spec) {
    RunOptions options;
    options.placement = all.placement();
    CAPTURE(seed, placed.ranks, spec.text());
    CHECK(runCase(SoftmaxCase(spec, random()), &all.group(), options) == "");
    ++cases;
  };
  for (const int algorithm : {seqparAttnAllGatherKv, seqparAttnRing}) {
    for (const auto& [name, slices] : usualMasks()) {
      SoftmaxSpec s;
      s.algorithm = algorithm;
      s.tokens = kTokens;
      s.heads = 2;
      s.kvHeads = 1;
      s.headDim = s.valueDim = 64;
      s.type = seqparBfloat16;
      s.slices = slices;
      solve(s, placed.ranks);
      run(s);
      std::printf("%s, algorithm %d: %.1f s\n", name, algorithm, now() - start);
      std::fflush(stdout);
    }
  }
  while (now() - start < seconds) {
    const auto& rows = seqpar::attn::algorithms();
    const auto& row = rows[random() % rows.size()];
    if (!row.softmax || (row.id == seqparAttnLocal && placed.ranks > 1)) continue;
    SoftmaxSpec s = drawSpec(random, placed.ranks);
    s.algorithm = row.id;
    s.heads = s.kvHeads = draw(random, 1, 2);
    s.headDim = s.valueDim = random() % 2 == 0 ? 64 : 16;
    s.type = static_cast<seqparDataType_t>(random() % 3);
    s.tokens = draw(random, 1, 400);
    s.slices = drawSlices(random, s.tokens, s.tokens, draw(random, 1, 6));
    s.layoutKind = static_cast<int>(random() % 4) - 1;
    if (random() % 2 == 0) drawPieces(s, random, placed.ranks);
    if (refusalOf(row, s, all.group()[0]).empty()) run(s);
  }
  std::printf("%d ranks, seed %llu: %d cases\n", placed.ranks, static_cast<unsigned long long>(seed), cases);
}

/// Batches of requests with random pages and owners, in turn by each algorithm that supports them and by AUTO.
TEST_CASE("chunked prefill on GPUs") {
  const double start = now();
  PlacedRanks all(placed);
  const uint64_t seed = seedOf();
  std::mt19937_64 random(seed);
  std::map<std::string, int> cases;
  const auto run = [&](const char* name, int algorithm, uint64_t most, uint64_t mostPage) {
    SoftmaxSpec s = specOf(drawPrefill(random, 4, most, mostPage), random, placed.ranks, algorithm);
    s.headDim = s.valueDim = random() % 2 == 0 ? 64 : 128;
    s.type = static_cast<seqparDataType_t>(1 + random() % 2);
    for (const auto& row : seqpar::attn::algorithms()) {
      if (row.softmax && row.id == algorithm && !refusalOf(row, s, all.group()[0]).empty()) return;
    }
    RunOptions options;
    options.placement = all.placement();
    CAPTURE(seed, placed.ranks, s.text());
    CHECK(runCase(SoftmaxCase(s, random()), &all.group(), options) == "");
    ++cases[name];
  };
  do {
    for (const auto& row : seqpar::attn::algorithms()) {
      if (!row.softmax || (row.id == seqparAttnLocal && placed.ranks > 1)) continue;
      run(row.name, row.id, 300, 64);
    }
    run("auto", seqparAttnAuto, 1000, 256);
  } while (now() - start < seconds);
  for (const auto& [name, count] : cases) std::printf("%s %d, ", name.c_str(), count);
  std::printf("%d ranks, seed %llu\n", placed.ranks, static_cast<unsigned long long>(seed));
  if (placed.ranks > 1) CHECK(cases.size() >= 4);
}

}  // namespace

int main(int count, char** words) {
  placed.gpus = seqpar::test::requireGpus(1);
  if (count < 2 || count > 5) {
    std::printf("usage: %s RANKS [SECONDS [SEED [TEST]]]\n", words[0]);
    return 2;
  }
  placed.ranks = std::atoi(words[1]);
  if (count > 2) seconds = std::atof(words[2]);
  if (count > 3) given = std::strtoull(words[3], nullptr, 10);
  const char* const catchWords[] = {words[0], count > 4 ? words[4] : "*"};
  return Catch::Session().run(2, catchWords);
}
