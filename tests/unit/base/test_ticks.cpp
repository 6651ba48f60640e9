#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "base/ticks.h"

using namespace seqpar;

namespace {

int64_t clockNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

TEST_CASE("A tick is between two readings of the monotonic clock") {
  std::vector<int64_t> before, ticks, after;
  for (int i = 0; i < 100; ++i) {
    before.push_back(clockNow());
    ticks.push_back(ticksNow());
    after.push_back(clockNow());
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  // The two clocks are read at different moments, and a time server changes rates by at most 0.05 %.
  const int64_t slack = 20000 + (after.back() - before.front()) / 1000;
  for (size_t i = 0; i < ticks.size(); ++i) {
    CAPTURE(i, kCountsTicks);
    CHECK(ticks[i] != 0);
    CHECK(nanosecondsAt(ticks[i]) >= before[i] - slack);
    CHECK(nanosecondsAt(ticks[i]) <= after[i] + slack);
  }
}

TEST_CASE("Ticks are monotonic across threads") {
  const int64_t first = ticksNow();
  int64_t second = 0;
  std::thread([&] { second = ticksNow(); }).join();
  CHECK(second >= first);
  CHECK(ticksNow() >= second);
}
