// Connections that stay: ranks as threads.
#include <array>
#include <catch2/catch.hpp>

#include "bootstrap/root.h"
#include "gathering.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Contains;
using std::chrono::milliseconds;

namespace {

void expectFailure(const Rank& rank, const std::string& part) {
  waitUntil([&] { return !rank.health.ok(); });
  expect(rank.health.result() == seqparRemoteError, "result ", rank.health.result());
  expect(rank.health.text().find(part) != std::string::npos, "text: ", rank.health.text());
}

}  // namespace

TEST_CASE("control: gathers and leaves") {
  const int nranks = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(nranks);
  const auto errors = onControls(nranks, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    checkGathers(*rank.control, number, nranks, 20);
    rank.control->leave();
    expect(rank.health.ok(), rank.health.text());
  });
  CHECK(errors == "");
}

TEST_CASE("control: works over a rendezvous and with timeout 0") {
  const auto id = makeUniqueId("");
  const auto errors = onThreads(3, [&](int number) {
    auto rendezvous = joinRendezvous(id, number, 3, withTimeout(0));
    Rank rank(*rendezvous, withTimeout(0));
    rendezvous.reset();
    checkGathers(*rank.control, number, 3, 5);
    rank.control->leave();
  });
  CHECK(errors == "");
}

TEST_CASE("control: idle ranks stay well past the timeout") {
  const auto wrong = withGrowingTimeout(1000, [](int timeoutMs) {
    return onControls(3, withTimeout(timeoutMs), [&](int number, Rank& rank) {
      std::this_thread::sleep_for(3 * milliseconds(timeoutMs));
      checkGathers(*rank.control, number, 3, 2);
      rank.control->leave();
    });
  });
  CHECK(wrong == "");
}

TEST_CASE("control: ranks know which ranks have enqueued fewer calls") {
  const auto errors = onControls(3, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    for (int call = 0; call < (number == 1 ? 2 : 5); ++call) rank.control->countCall();
    waitUntil([&] { return rank.control->behind().rfind("rank 1 enqueued 2 calls, others up to", 0) == 0; });
    checkGathers(*rank.control, number, 3, 1);
    for (int call = 0; call < (number == 1 ? 3 : 0); ++call) rank.control->countCall();
    waitUntil([&] { return rank.control->behind().empty(); });
    rank.control->leave();
  });
  CHECK(errors == "");
}

TEST_CASE("control: ranks whose collective calls differ fail") {
  const bool ends = GENERATE(false, true);
  std::array<CallChain, 3> chains;  // outlive the controls, which report them
  const auto errors = onControls(3, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    CallChain& chain = chains[static_cast<size_t>(number)];
    rank.control->report(chain);
    for (uint16_t call = 0; call < 1000; ++call) chain.add(call);
    checkGathers(*rank.control, number, 3, 2);
    expect(rank.health.ok(), rank.health.text());
    if (ends && number == 1) chain.end();
    chain.add(number == 1 ? 5 : 4);
    if (!ends) return expectFailure(rank, "issued different collective calls; the first is number 1001");
    std::this_thread::sleep_for(2 * heartbeatInterval(milliseconds(kNoTimeoutMs)));
    checkGathers(*rank.control, number, 3, 2);
    rank.control->leave();
    expect(rank.health.ok(), rank.health.text());
  });
  CHECK(errors == "");
}

TEST_CASE("control: gathers of different sizes name the ranks, and the next one works") {
  const auto errors = onControls(3, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    const auto text = gatherError(*rank.control, number == 1 ? 12 : 8);
    expect(text.find("rank 1 gave 12 bytes, rank 0 gave 8") != std::string::npos, text);
    checkGathers(*rank.control, number, 3, 2);
    rank.control->leave();
  });
  CHECK(errors == "");
}

TEST_CASE("control: a rank that does not gather is named after the timeout") {
  const auto wrong = withGrowingTimeout(1000, [](int timeoutMs) {
    return onControls(3, withTimeout(timeoutMs), [&](int number, Rank& rank) {
      if (number != 1) {
        const auto text = gatherError(*rank.control, 4);
        const auto expected = concat("rank 1 did not take part within ", timeoutMs, " ms");
        expect(text.find(expected) != std::string::npos, text);
      }
      expectFailure(rank, "rank 1 did not take part");
    });
  });
  CHECK(wrong == "");
}

TEST_CASE("control: a failure reaches all ranks, also during a gather") {
  const int failing = GENERATE(0, 2);
  CAPTURE(failing);
  const auto errors = onControls(4, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    if (number == failing) {
      std::this_thread::sleep_for(milliseconds(100));
      rank.health.fail(seqparSystemError, "out of paper");
      expect(gatherError(*rank.control, 4) == "out of paper", "the failing rank's own gather");
      rank.control->leave();
      return;
    }
    if (number != 1) expect(gatherError(*rank.control, 4).find("out of paper") != std::string::npos, "gather");
    expectFailure(rank, concat("rank ", failing, " ("));
    expect(rank.health.text().find("failed: out of paper") != std::string::npos, rank.health.text());
    rank.control->leave();
  });
  CHECK(errors == "");
}

TEST_CASE("control: all ranks fail at once without a deadlock") {
  const auto errors = onControls(8, withTimeout(kNoTimeoutMs), [&](int, Rank& rank) {
    rank.health.fail(seqparRemoteError, "everyone");
    expect(rank.health.text().find("everyone") != std::string::npos, rank.health.text());
  });
  CHECK(errors == "");
}

TEST_CASE("control: a failure found by another thread ends a gather") {
  const auto errors = onControls(2, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    if (number == 1) return expectFailure(rank, "aborted");
    std::jthread other([&] {
      std::this_thread::sleep_for(milliseconds(100));
      rank.health.fail(seqparRemoteError, "aborted");
    });
    expect(gatherError(*rank.control, 4) == "aborted", "text");
  });
  CHECK(errors == "");
}

TEST_CASE("control: a failure without a notice ends a gather and is reported at close") {
  auto group = makeLocalGroup(2, kNoTimeout);
  const auto errors = onThreads(2, [&](int number) {
    Rank rank(*group[static_cast<size_t>(number)], withTimeout(kNoTimeoutMs));
    if (number == 1) return expectFailure(rank, "unannounced");
    rank.health.onFailure({});
    std::jthread other([&] {
      std::this_thread::sleep_for(milliseconds(100));
      rank.health.fail(seqparRemoteError, "unannounced");
    });
    expect(gatherError(*rank.control, 4) == "unannounced", "text");
  });
  CHECK(errors == "");
}

TEST_CASE("control: a rank that ends without a bye fails the others") {
  const int ending = GENERATE(0, 1);
  CAPTURE(ending);
  const auto errors = onControls(3, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    if (number == ending) return;
    if (number == 2) {
      try {
        rank.control->leave();
        expect(!rank.health.ok(), "leave() returned, and the others had not left");
      } catch (const Error& error) {
        expect(error.result() == seqparRemoteError, "result ", error.result());
      }
    }
    expectFailure(rank, concat("rank ", ending, " ("));
  });
  CHECK(errors == "");
}

TEST_CASE("control: a rank that does not leave is named after the timeout") {
  const auto wrong = withGrowingTimeout(1000, [](int timeoutMs) {
    return onControls(3, withTimeout(timeoutMs), [&](int number, Rank& rank) {
      if (number != 2) {
        try {
          rank.control->leave();
          expect(!rank.health.ok(), "leave() returned, and the others had not left");
        } catch (const Error& error) {
          expect(std::string(error.what()).find("rank 2 did not leave") != std::string::npos, error.what());
        }
      }
      expectFailure(rank, "rank 2 did not leave");
    });
  });
  CHECK(wrong == "");
}

TEST_CASE("control: many communicators one after the other") {
  const auto errors = onControls(2, withTimeout(kNoTimeoutMs), [&](int number, Rank& rank) {
    for (int time = 0; time < 20; ++time) {
      Rank inner(*rank.control, withTimeout(kNoTimeoutMs));
      checkGathers(*inner.control, number, 2, 2);
      inner.control->leave();
    }
    rank.control->leave();
  });
  CHECK(errors == "");
}
