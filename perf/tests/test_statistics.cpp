#include <catch2/catch.hpp>
#include <vector>

#include "common/statistics.h"

using namespace seqpar::perf;

TEST_CASE("Statistics of times are nccl-tests'") {
  std::vector<double> times;
  for (int i = 200; i > 0; --i) times.push_back(i);
  const Statistics statistics(times);
  CHECK(statistics.min == 1);
  CHECK(statistics.max == 200);
  CHECK(statistics.mean == 100.5);
  CHECK(statistics.p50 == 100.5);
  CHECK(statistics.p95 == 190);
  CHECK(statistics.p99 == 198);
  CHECK(statistics.deviation == Approx(57.7343));  // of the population, not of a sample: sqrt((200^2 - 1) / 12)
  CHECK(statistics.variation() == Approx(57.4471));
}
