// Ranks as processes: rendezvous in every way, and the death and standstill of some.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>

#include "bootstrap/socket.h"
#include "common/reserved_port.h"
#include "processes.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Contains;
using std::chrono::milliseconds;

namespace {

void checkAllFine(Processes& processes, int nranks) {
  for (int rank = 0; rank < nranks; ++rank) {
    CAPTURE(rank);
    CHECK(processes.reportOf(rank) == "");
  }
}

/// The port after `port`; null if it is in use.
std::unique_ptr<ReservedPort> reserveAfter(uint16_t port) {
  try {
    return port < 65535 ? std::make_unique<ReservedPort>(static_cast<uint16_t>(port + 1)) : nullptr;
  } catch (const std::system_error&) {
    return nullptr;
  }
}

void setEnvironment(int rank, int nranks, uint16_t port) {
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(nranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
}

/// The reports, among 4 ranks, that do not state what happened to `lost`.
std::string othersReport(Processes& processes, int lost, const std::string& what) {
  std::string wrong;
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == lost) continue;
    const auto text = processes.reportOf(rank);
    const bool right =
        text.find(concat("rank ", lost, " (")) != std::string::npos && text.find(what) != std::string::npos;
    if (!right) wrong += concat("rank ", rank, ": ", text, "\n");
  }
  return wrong;
}

}  // namespace

TEST_CASE("processes with an id join, gather and leave") {
  const int nranks = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(nranks);
  Processes processes(nranks, [nranks](int number, Page& page) {
    auto rendezvous = joinRendezvous(page.id, number, nranks, withTimeout(kNoTimeoutMs));
    checkGathers(*rendezvous, number, nranks, 3);
    Rank rank(*rendezvous, withTimeout(kNoTimeoutMs));
    rendezvous.reset();
    checkGathers(*rank.control, number, nranks, 10);
    rank.control->leave();
    expect(rank.health.ok(), rank.health.text());
  });
  processes.startWithId();
  checkAllFine(processes, nranks);
}

TEST_CASE("processes connect by their environment, twice") {
  const int nranks = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(nranks);
  const ReservedPort port;
  Processes processes(nranks, [&](int number, Page&) {
    setEnvironment(number, nranks, port.number());
    setenv("TORCHELASTIC_RUN_ID", "some run", 1);
    for (int time = 0; time < 2; ++time) {
      // Rank 0 need not be the first.
      if (number == 0) std::this_thread::sleep_for(milliseconds(200));
      const auto join = joinFromEnvironment(withTimeout(kNoTimeoutMs));
      expect(join.rank == number && join.nranks == nranks, "rank ", join.rank, " of ", join.nranks);
      checkGathers(*join.allgather, number, nranks, 5);
    }
  });
  processes.start();
  checkAllFine(processes, nranks);
}

TEST_CASE("next to torchrun's store the next port is used") {
  auto store = listenOn("", 0);
  auto next = reserveAfter(store.port);
  for (int tries = 0; !next && tries < 1000; ++tries) {
    store = listenOn("", 0);
    next = reserveAfter(store.port);
  }
  REQUIRE(next);
  Processes processes(2, [port = store.port](int number, Page&) {
    setEnvironment(number, 2, port);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    const auto join = joinFromEnvironment(withTimeout(kNoTimeoutMs));
    checkGathers(*join.allgather, number, 2, 2);
  });
  processes.start();
  checkAllFine(processes, 2);
}

TEST_CASE("ranks with different secrets do not connect") {
  // The root reports it after the timeout, if it is scheduled before rank 0's wait for its answer times out.
  const auto wrong = withGrowingTimeout(1500, [](int timeoutMs) -> std::string {
    const ReservedPort port;
    Processes processes(2, [&](int number, Page&) {
      setEnvironment(number, 2, port.number());
      setenv("SEQPAR_BOOTSTRAP_TOKEN", number == 0 ? "one" : "two", 1);
      joinFromEnvironment(withTimeout(timeoutMs));
    });
    processes.start();
    const auto first = processes.reportOf(0), second = processes.reportOf(1);
    const auto says = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
    const bool right = says(first, "rank 1 did not arrive at rank 0") &&
                       (says(second, "rank 0 did not arrive") || says(second, "cannot connect"));
    return right ? "" : first + "; " + second;
  });
  CHECK(wrong == "");
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
  CHECK_THAT(processes.reportOf(0), Contains("environment variable RANK is not set"));
  CHECK_THAT(processes.reportOf(1), Contains("WORLD_SIZE=\"two\""));
  CHECK_THAT(processes.reportOf(2), Contains("RANK=\"2\"") && Contains("from 0 to 1"));
  CHECK_THAT(processes.reportOf(3), Contains("MASTER_PORT=\"70000\""));
  CHECK_THAT(processes.reportOf(4), Contains("MASTER_ADDR is not set"));
}

TEST_CASE("all ranks detect a killed rank before the timeout") {
  const int killed = GENERATE(0, 2);
  const int timeout = GENERATE(int{kNoTimeoutMs}, 0);
  CAPTURE(killed, timeout);
  Processes processes(4, [timeout](int rank, Page& page) { awaitFailure(rank, 4, page, withTimeout(timeout)); });
  processes.startWithId();
  REQUIRE(processes.allReady(4));
  processes.signal(killed, SIGKILL);
  CHECK(othersReport(processes, killed, "closed its connection: the process is gone") == "");
}

TEST_CASE("all ranks detect a stopped rank after the timeout, and it fails when it resumes") {
  const int stopped = GENERATE(0, 2);
  CAPTURE(stopped);
  const auto wrong = withGrowingTimeout(1500, [&](int timeoutMs) -> std::string {
    Processes processes(4, [=](int rank, Page& page) { awaitFailure(rank, 4, page, withTimeout(timeoutMs)); });
    processes.startWithId();
    if (!processes.allReady(4)) return "a failure before a rank was stopped";
    processes.signal(stopped, SIGSTOP);
    const auto others = othersReport(processes, stopped, concat("has been silent for ", timeoutMs, " ms"));
    processes.signal(stopped, SIGCONT);
    CHECK(processes.reportOf(stopped) != "");
    return others;
  });
  CHECK(wrong == "");
}

namespace {

/// Three ranks with a timeout; some are stopped for a part of it, and then all gather and leave. Returns the errors.
std::string stoppedForAWhile(const std::vector<int>& stopped, int timeoutMs, double part) {
  Processes processes(3, [timeoutMs](int number, Page& page) {
    auto rendezvous = joinRendezvous(page.id, number, 3, withTimeout(kNoTimeoutMs));
    Rank rank(*rendezvous, withTimeout(timeoutMs));
    rendezvous.reset();
    ++page.ready;
    waitUntil([&] { return page.ready >= 4; });
    checkGathers(*rank.control, number, 3, 3);
    rank.control->leave();
  });
  processes.startWithId();
  if (!processes.allReady(3)) return "a failure before a rank was stopped";
  for (const int rank : stopped) processes.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(part * std::chrono::duration<double, std::milli>(timeoutMs));
  for (const int rank : stopped) processes.signal(rank, SIGCONT);
  ++processes.page().ready;
  std::string wrong;
  for (int rank = 0; rank < 3; ++rank) wrong += processes.reportOf(rank);
  return wrong;
}

}  // namespace

TEST_CASE("a rank stopped for less than the timeout causes no error") {
  const int stopped = GENERATE(0, 1);
  CAPTURE(stopped);
  CHECK(withGrowingTimeout(4000, [&](int timeoutMs) { return stoppedForAWhile({stopped}, timeoutMs, 0.4); }) == "");
}

TEST_CASE("all ranks stopped together resume without an error") {
  CHECK(withGrowingTimeout(1000, [](int timeoutMs) { return stoppedForAWhile({0, 1, 2}, timeoutMs, 2.5); }) == "");
}

TEST_CASE("a rank is killed while the others wait for it to join, gather or leave") {
  const int where = GENERATE(0, 1, 2);
  CAPTURE(where);
  Processes processes(3, [where](int number, Page& page) {
    if (where == 0) {
      // Rank 2 is only pretended: rank 1 dies while rank 0 and it wait for rank 2.
      if (number == 2) return;
      ++page.ready;
      joinRendezvous(page.id, number, 3, withTimeout(kNoTimeoutMs));
      return;
    }
    auto rendezvous = joinRendezvous(page.id, number, 3, withTimeout(kNoTimeoutMs));
    Rank rank(*rendezvous, withTimeout(kNoTimeoutMs));
    ++page.ready;
    if (number == 1) std::this_thread::sleep_for(kNoTimeout);
    if (where == 1) {
      throw std::runtime_error(gatherError(*rank.control, 4));
    } else {
      rank.control->leave();
    }
  });
  processes.startWithId();
  REQUIRE(processes.allReady(where == 0 ? 2 : 3));
  std::this_thread::sleep_for(milliseconds(300));
  processes.signal(1, SIGKILL);
  for (const int rank : {0, 2}) {
    if (where == 0 && rank == 2) continue;
    CAPTURE(rank);
    CHECK_THAT(processes.reportOf(rank), Contains("rank 1 (") && Contains("the process is gone"));
  }
}
