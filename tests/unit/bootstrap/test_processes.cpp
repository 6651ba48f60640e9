// Ranks as processes: meeting in every way, and the death and standstill of some.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "bootstrap/socket.h"
#include "processes.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Contains;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kBound{30000};

void checkAllFine(Processes& processes, int nranks) {
  for (int rank = 0; rank < nranks; ++rank) {
    CAPTURE(rank);
    CHECK(processes.reportOf(rank, kBound) == "");
  }
}

/// A port that is free now, and not one that the system gives to clients.
uint16_t freePort() {
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    const auto port = static_cast<uint16_t>(20000 + random() % 10000);
    try {
      return listenOn("", port).port;
    } catch (const Error&) {
      continue;
    }
  }
  throw std::runtime_error("no free port found");
}

void setEnvironment(int rank, int nranks, uint16_t port) {
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(nranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
}

/// All of 4 ranks but one say what is the matter with it, within some time.
void checkOthersReport(Processes& processes, int lost, const char* what, std::chrono::steady_clock::time_point since,
                       milliseconds within) {
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == lost) continue;
    CAPTURE(rank);
    CHECK_THAT(processes.reportOf(rank, within + milliseconds(3000)),
               Contains(concat("rank ", lost, " (")) && Contains(what));
    CHECK(processes.reportedAt(rank) - since < within);
  }
}

}  // namespace

TEST_CASE("processes with an id meet, gather and leave") {
  const int nranks = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(nranks);
  Processes processes(nranks, [nranks](int number, Page& page) {
    auto meeting = joinRendezvous(page.id, number, nranks, withTimeout(30000));
    checkGathers(*meeting, number, nranks, 3);
    Rank rank(*meeting, withTimeout(30000));
    meeting.reset();
    checkGathers(*rank.control, number, nranks, 10);
    rank.control->leave();
    expect(rank.health.ok(), rank.health.text());
  });
  processes.start(makeUniqueId(""));
  checkAllFine(processes, nranks);
}

TEST_CASE("processes meet as their environment says, twice") {
  const int nranks = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(nranks);
  const auto port = freePort();
  Processes processes(nranks, [nranks, port](int number, Page&) {
    setEnvironment(number, nranks, port);
    setenv("TORCHELASTIC_RUN_ID", "some run", 1);
    for (int time = 0; time < 2; ++time) {
      // Rank 0 need not be the first.
      if (number == 0) std::this_thread::sleep_for(milliseconds(200));
      const auto join = joinFromEnvironment(withTimeout(30000));
      expect(join.rank == number && join.nranks == nranks, "rank ", join.rank, " of ", join.nranks);
      checkGathers(*join.allgather, number, nranks, 5);
    }
  });
  processes.start();
  checkAllFine(processes, nranks);
}

TEST_CASE("beside torchrun's own store, the next port is used") {
  const auto store = listenOn("", 0);
  REQUIRE(store.port < 65535);
  const uint16_t port = store.port;
  Processes processes(2, [port](int number, Page&) {
    setEnvironment(number, 2, port);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    const auto join = joinFromEnvironment(withTimeout(30000));
    checkGathers(*join.allgather, number, 2, 2);
  });
  processes.start();
  checkAllFine(processes, 2);
}

TEST_CASE("ranks with different secrets do not meet") {
  const auto port = freePort();
  Processes processes(2, [port](int number, Page&) {
    setEnvironment(number, 2, port);
    setenv("SEQPAR_BOOTSTRAP_TOKEN", number == 0 ? "one" : "two", 1);
    joinFromEnvironment(withTimeout(1500));
  });
  processes.start();
  CHECK_THAT(processes.reportOf(0, kBound), Contains("rank 1 did not arrive at rank 0"));
  CHECK_THAT(processes.reportOf(1, kBound), Contains("rank 0 did not arrive") || Contains("cannot connect"));
}

TEST_CASE("the environment's errors are named") {
  Processes processes(5, [](int number, Page&) {
    setEnvironment(0, 2, 1234);
    if (number == 0) unsetenv("RANK");
    if (number == 1) setenv("WORLD_SIZE", "two", 1);
    if (number == 2) setenv("RANK", "2", 1);
    if (number == 3) setenv("MASTER_PORT", "70000", 1);
    if (number == 4) unsetenv("MASTER_ADDR");
    joinFromEnvironment(withTimeout(1000));
  });
  processes.start();
  CHECK_THAT(processes.reportOf(0, kBound), Contains("environment variable RANK is not set"));
  CHECK_THAT(processes.reportOf(1, kBound), Contains("WORLD_SIZE=\"two\""));
  CHECK_THAT(processes.reportOf(2, kBound), Contains("RANK=\"2\"") && Contains("from 0 to 1"));
  CHECK_THAT(processes.reportOf(3, kBound), Contains("MASTER_PORT=\"70000\""));
  CHECK_THAT(processes.reportOf(4, kBound), Contains("MASTER_ADDR is not set"));
}

TEST_CASE("a killed rank is noticed by all at once, whatever the timeout") {
  const int killed = GENERATE(0, 2);
  const int timeout = GENERATE(60000, 0);
  CAPTURE(killed, timeout);
  Processes processes(4, [timeout](int rank, Page& page) { awaitFailure(rank, 4, page, withTimeout(timeout)); });
  processes.start(makeUniqueId(""));
  REQUIRE(processes.allReady(4));
  const auto at = std::chrono::steady_clock::now();
  processes.signal(killed, SIGKILL);
  checkOthersReport(processes, killed, "closed its connection: the process is gone", at, milliseconds(2000));
}

TEST_CASE("a stopped rank is noticed by all within the timeout, and notices when it goes on") {
  const int stopped = GENERATE(0, 2);
  CAPTURE(stopped);
  Processes processes(4, [](int rank, Page& page) { awaitFailure(rank, 4, page, withTimeout(1500)); });
  processes.start(makeUniqueId(""));
  REQUIRE(processes.allReady(4));
  const auto at = std::chrono::steady_clock::now();
  processes.signal(stopped, SIGSTOP);
  checkOthersReport(processes, stopped, "has been silent for 1500 ms", at, milliseconds(3500));
  processes.signal(stopped, SIGCONT);
  CHECK(processes.reportOf(stopped, milliseconds(5000)) != "no report");
  CHECK(processes.reportOf(stopped, milliseconds(5000)) != "no failure was noticed");
}

TEST_CASE("a rank stopped for less than the timeout is not missed") {
  const int stopped = GENERATE(0, 1);
  CAPTURE(stopped);
  Processes processes(3, [](int number, Page& page) {
    auto meeting = joinRendezvous(page.id, number, 3, withTimeout(30000));
    Rank rank(*meeting, withTimeout(4000));
    ++page.ready;
    expect(within(kBound, [&] { return page.ready >= 4; }), "was not told to go on");
    checkGathers(*rank.control, number, 3, 3);
    rank.control->leave();
  });
  processes.start(makeUniqueId(""));
  REQUIRE(processes.allReady(3));
  processes.signal(stopped, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(1500));
  processes.signal(stopped, SIGCONT);
  ++processes.page().ready;
  checkAllFine(processes, 3);
}

TEST_CASE("all ranks stopped together go on as if nothing had been") {
  Processes processes(3, [](int number, Page& page) {
    auto meeting = joinRendezvous(page.id, number, 3, withTimeout(30000));
    Rank rank(*meeting, withTimeout(1000));
    meeting.reset();
    ++page.ready;
    expect(within(kBound, [&] { return page.ready >= 4; }), "was not told to go on");
    checkGathers(*rank.control, number, 3, 3);
    rank.control->leave();
  });
  processes.start(makeUniqueId(""));
  REQUIRE(processes.allReady(3));
  for (int rank = 0; rank < 3; ++rank) processes.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(2500));
  for (int rank = 0; rank < 3; ++rank) processes.signal(rank, SIGCONT);
  ++processes.page().ready;
  checkAllFine(processes, 3);
}

TEST_CASE("a rank killed while the others wait for it to join, to gather or to leave") {
  const int where = GENERATE(0, 1, 2);
  CAPTURE(where);
  Processes processes(3, [where](int number, Page& page) {
    if (where == 0) {
      // Rank 2 is only pretended: rank 1 dies while rank 0 and it wait for rank 2.
      if (number == 2) return;
      ++page.ready;
      joinRendezvous(page.id, number, 3, withTimeout(60000));
      return;
    }
    auto meeting = joinRendezvous(page.id, number, 3, withTimeout(30000));
    Rank rank(*meeting, withTimeout(60000));
    ++page.ready;
    if (number == 1) std::this_thread::sleep_for(kBound);
    if (where == 1) {
      throw std::runtime_error(gatherError(*rank.control, 4));
    } else {
      rank.control->leave();
    }
  });
  processes.start(makeUniqueId(""));
  REQUIRE(processes.allReady(where == 0 ? 2 : 3));
  std::this_thread::sleep_for(milliseconds(300));
  const auto at = std::chrono::steady_clock::now();
  processes.signal(1, SIGKILL);
  for (const int rank : {0, 2}) {
    if (where == 0 && rank == 2) continue;
    CAPTURE(rank);
    CHECK_THAT(processes.reportOf(rank, milliseconds(5000)), Contains("rank 1 (") && Contains("the process is gone"));
    CHECK(processes.reportedAt(rank) - at < milliseconds(2000));
  }
}
