// A counter of one thread, and the moment at which others begin to count: no value is returned twice, none is lost.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/owned_counter.h"

using namespace seqpar;

namespace {

/// Every thread counts `each` times, one after the other or all at once; the values of all threads.
std::vector<std::vector<uint64_t>> countAtOnce(OwnedCounter& counter, int threads, int each) {
  std::vector<std::vector<uint64_t>> values(static_cast<size_t>(threads));
  std::atomic<int> ready{0};
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      ++ready;
      while (ready < threads) std::this_thread::yield();
      for (int i = 0; i < each; ++i) values[static_cast<size_t>(t)].push_back(counter.next());
    });
  }
  for (auto& thread : running) thread.join();
  return values;
}

}  // namespace

TEST_CASE("a thread alone counts from 0, with another counter in between") {
  OwnedCounter counter, other;
  for (uint64_t i = 0; i < 100; ++i) {
    REQUIRE(counter.next() == i);
    REQUIRE(other.next() == i);
  }
  CHECK(counter.load() == 100);
}

TEST_CASE("a second thread continues, and the first one after it") {
  OwnedCounter counter;
  CHECK(counter.next() == 0);
  uint64_t second = 0;
  std::thread([&] { second = counter.next(); }).join();
  CHECK(second == 1);
  CHECK(counter.next() == 2);
  CHECK(counter.load() == 3);
}

TEST_CASE("the latest value can be taken back, by any thread, and only that one") {
  OwnedCounter counter;
  CHECK(counter.next() == 0);
  CHECK(counter.next() == 1);
  CHECK_FALSE(counter.undo(0));
  CHECK(counter.undo(1));
  CHECK_FALSE(counter.undo(1));
  CHECK(counter.next() == 1);
  uint64_t second = 0;
  std::thread([&] { second = counter.next(); }).join();
  CHECK(second == 2);
  CHECK(counter.undo(2));
  CHECK(counter.load() == 2);
  CHECK(counter.next() == 2);
}

TEST_CASE("another thread starts to count while the owner counts: no value is lost") {
  constexpr int kRounds = 100;
  constexpr uint64_t kEach = 50;
  for (int round = 0; round < kRounds; ++round) {
    OwnedCounter counter;
    std::atomic<bool> owned{false}, ended{false};
    uint64_t own = 0;
    std::thread owner([&] {
      while (!ended.load(std::memory_order_relaxed)) {
        counter.next();
        if (++own == 1) owned = true;
      }
    });
    while (!owned) std::this_thread::yield();
    for (uint64_t i = 0; i < kEach; ++i) counter.next();
    ended = true;
    owner.join();
    REQUIRE(counter.load() == own + kEach);
  }
}

TEST_CASE("threads that start at once get each value once, in increasing order") {
  constexpr int kRounds = 50, kEach = 300;
  const int threads = GENERATE(2, 3, 5);
  CAPTURE(threads);
  for (int round = 0; round < kRounds; ++round) {
    OwnedCounter counter;
    const auto values = countAtOnce(counter, threads, kEach);
    std::vector<int> times(static_cast<size_t>(threads) * kEach);
    bool increase = true;
    for (const auto& mine : values) {
      for (size_t i = 0; i < mine.size(); ++i) {
        increase = increase && (i == 0 || mine[i] > mine[i - 1]);
        REQUIRE(mine[i] < times.size());
        ++times[mine[i]];
      }
    }
    REQUIRE(increase);
    REQUIRE(times == std::vector<int>(times.size(), 1));
    REQUIRE(counter.load() == times.size());
  }
}
