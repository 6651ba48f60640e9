// The places of callers, and a close while threads enter and leave.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "api/callers.h"
#include "common/ranks.h"
#include "common/timeouts.h"
#include "seqpar/exchange.h"

using namespace seqpar;
using namespace seqpar::test;

TEST_CASE("a place has one thread at a time, and stays with it while it is inside a call") {
  Callers callers;
  std::vector<Callers::Place*> places;
  while (Callers::Place* const place = callers.take()) {
    for (const auto* other : places) REQUIRE(place != other);
    places.push_back(place);
  }
  REQUIRE(places.size() == 8);
  CHECK(callers.enter(places[3]));
  Callers::giveBack(places[3]);
  CHECK(callers.take() == nullptr);
  callers.leave(places[3]);
  Callers::giveBack(places[3]);
  CHECK(callers.take() == places[3]);
  Callers::giveBack(nullptr);
}

TEST_CASE("after close() no thread enters") {
  Callers callers;
  Callers::Place* const place = callers.take();
  for (Callers::Place* const each : {place, static_cast<Callers::Place*>(nullptr)}) {
    CHECK(callers.enter(each));
    callers.leave(each);
  }
  callers.close();
  CHECK_FALSE(callers.enter(place));
  CHECK_FALSE(callers.enter(nullptr));
  callers.close();
}

TEST_CASE("close() returns once all threads have left their calls, also nested ones") {
  constexpr int kThreads = 10, kRounds = 100;  // more threads than places
  for (int round = 0; round < kRounds; ++round) {
    Callers callers;
    std::atomic<int> started{0}, late{0};
    std::atomic<bool> ended{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        Callers::Place* const place = callers.take();
        ++started;
        while (callers.enter(place)) {
          if (callers.enter(place)) callers.leave(place);
          if (ended.load(std::memory_order_relaxed)) ++late;
          callers.leave(place);
        }
        Callers::giveBack(place);
      });
    }
    while (started < kThreads) std::this_thread::yield();
    callers.close();
    ended = true;
    for (auto& thread : threads) thread.join();
    REQUIRE(late == 0);
  }
}

TEST_CASE("the check mode ends a communicator that two threads call concurrently") {
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  config.checkArguments = 1;
  config.timeoutMs = kNoTimeoutMs;
  seqparUniqueId id{};
  REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
  const auto errors = onThreads(2, [&](int rank) {
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, 2, id, rank, &config), "seqparCommInitRankConfig");
    const char mine = 'a';
    const auto exchange = [&](char* received) {
      return seqparSendRecv(&mine, 1, 1 - rank, received, 1, 1 - rank, comm, nullptr);
    };
    if (rank == 0) {  // the first thread waits for rank 1, which waits for the error
      std::array<seqparResult_t, 2> results{};
      std::array<char, 2> received{};
      {
        std::jthread first([&] { results[0] = exchange(&received[0]); });
        results[1] = exchange(&received[1]);
      }
      expect(results[0] == seqparInvalidUsage && results[1] == seqparInvalidUsage, "results ", results[0], ", ",
             results[1]);
    } else {
      for (seqparResult_t lost = seqparSuccess; lost == seqparSuccess;) {
        std::this_thread::yield();
        expectSuccess(seqparCommGetAsyncError(comm, &lost), "seqparCommGetAsyncError");
      }
      char received = 0;
      const auto result = exchange(&received);
      expect(result == seqparRemoteError, "result ", result);
    }
    const std::string text = seqparGetLastError(comm);
    expect(text.find("another thread is inside seqparSendRecv") != std::string::npos, text);
    seqparCommDestroy(comm);
  });
  CHECK(errors == "");
}
