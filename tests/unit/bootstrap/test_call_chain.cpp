// Digests of collective calls: two ranks whose calls may differ, at any distance.
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "bootstrap/call_chain.h"
#include "bootstrap/wire.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// Calls 1 to `calls`; from `other` on (0: never) not those of most ranks.
CallReport reportOf(uint64_t calls, uint64_t other) {
  CallChain chain;
  for (uint64_t call = 1; call <= calls; ++call) {
    chain.add(static_cast<uint16_t>(call % 7 + (call == other ? 1 : 0)));
  }
  return chain.report().value();
}

/// Whether all ranks know the digest of calls 1 to `call`, if none is more than `ahead` calls ahead.
bool isKept(uint64_t call, uint64_t calls, uint64_t ahead) {
  const uint64_t step = ahead < CallReport::kLatest ? 1 : CallReport::kSteps[ahead < 256 ? 0 : ahead < 4096 ? 1 : 2];
  return calls / step * step >= call;
}

}  // namespace

TEST_CASE("call chain: reports of ranks with equal calls agree, and calls that differ are found") {
  const Seed seed;
  std::mt19937 random(seed);
  size_t found = 0, exact = 0;
  for (int i = 0; i < 300; ++i) {
    const uint64_t fewer = random() % (i % 2 == 0 ? 70 : 20000);
    const uint64_t ahead = random() % (i % 3 == 0 ? 40 : 15000);
    const CallReport mine = reportOf(fewer, 0);
    CHECK_FALSE(differenceOf(mine, reportOf(fewer + ahead, 0)));
    const uint64_t other = 1 + random() % (fewer + 10);
    const CallReport remote = reportOf(fewer + ahead, other);
    const auto difference = random() % 2 == 0 ? differenceOf(mine, remote) : differenceOf(remote, mine);
    CAPTURE(fewer, ahead, other);
    if (fewer < other) {
      CHECK_FALSE(difference);
      continue;
    }
    if (difference) CHECK(difference->call >= other);
    if (difference && difference->first) CHECK(difference->call == other);
    if (isKept(other, fewer, ahead)) CHECK(difference);
    found += difference ? 1 : 0;
    exact += difference && difference->first ? 1 : 0;
  }
  CHECK(exact > 5);
  CHECK(found > exact);
}

TEST_CASE("call chain: reports while calls are added, and as messages") {
  CallChain chain;
  const CallReport all = reportOf(5000, 0);
  std::jthread adder([&] {
    for (uint64_t call = 1; call <= 5000; ++call) chain.add(static_cast<uint16_t>(call % 7));
  });
  for (bool last = false; !last;) {
    const auto report = chain.report();
    if (!report) continue;
    last = report->calls == 5000;
    if (differenceOf(*report, all)) FAIL("call " << report->calls);
    const auto read = wire::decodeCalls(wire::encode(wire::Calls{3, report}));
    if (!read || read->enqueued != 3 || read->report != report) FAIL("message of call " << report->calls);
  }
  chain.end();
  CHECK_FALSE(chain.report());
}
