// Runs random cases one after the other on ranks that are threads. Other threads draw the next cases and compute their
// expected results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "random_case.h"

namespace seqpar::attn::test {

struct RandomRun {
  RandomKind kind = RandomKind::Linear;
  uint64_t seed = 0;
  uint64_t cases = 0;  ///< from 0 on
  int64_t only = -1;   ///< the number of the one case to run; -1: all
  bool onDevice = false;
  unsigned threads = 1;  ///< number of threads that draw and compute
};

/// Case i has 1 + i % kMostRandomRanks ranks.
constexpr int kMostRandomRanks = 4;

/// Communicators of the ranks, and the placement of the next case (nullptr: host memory).
struct RandomRanks {
  const RankThreads* ranks = nullptr;
  std::function<const Placement*()> placement;
};

/// Runs the cases of `run` for the number of ranks of `on`. Returns up to ten failures as text; after a failed call it
/// stops.
std::vector<std::string> runRandomCases(const RandomRun& run, const RandomRanks& on);

/// Seconds of all cases so far: calls, comparisons, and waiting for expected results.
struct RandomTimes {
  double running = 0, comparing = 0, waiting = 0;
  uint64_t cases = 0;
};
const RandomTimes& randomTimes();

}  // namespace seqpar::attn::test
