// A rank with several threads scans next to other work; a rank with one thread scans between its passes. Chunks are not
// divided among threads here, so both compute equal bits.
#include "linear_rank.h"
#include "unit/seed.h"

namespace {

using seqpar::attn::test::Numbers;
using seqpar::attn::test::RankArrays;
using seqpar::attn::test::RankThreads;
using seqpar::attn::test::runRank;

TEST_CASE("a scan next to other work gives the bits of a scan between the passes") {
  const int algorithm = GENERATE(seqparAttnZeco, seqparAttnLasp2);
  const int count = GENERATE(2, 3);
  const seqpar::test::Seed seed;
  const RankThreads ranks(count);
  CAPTURE(algorithm, count);
  std::vector<std::vector<Numbers>> results[2];
  for (const int threads : {1, 2}) {
    auto& ofRanks = results[threads - 1];
    ofRanks.resize(static_cast<size_t>(count));
    ranks.each([&](int rank) {
      RankArrays arrays({}, seed + static_cast<uint64_t>(rank));
      runRank(algorithm, ranks[rank], threads, arrays);
      ofRanks[static_cast<size_t>(rank)] = arrays.results();
      return std::string();
    });
  }
  for (int rank = 0; rank < count; ++rank) {
    const auto &between = results[0][static_cast<size_t>(rank)], &beside = results[1][static_cast<size_t>(rank)];
    for (size_t i = 0; i < between.size(); ++i) {
      CAPTURE(rank, i);
      REQUIRE(std::none_of(between[i].begin(), between[i].end(), [](float x) { return std::isnan(x); }));
      REQUIRE(between[i] == beside[i]);
    }
  }
}

}  // namespace
