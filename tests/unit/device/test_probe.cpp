// The measurement of links comes to an end for any number of peers, leaves channels as it found them, and measures
// time.
#include <catch2/catch.hpp>

#include "probe_lane.h"
#include "thread_peers.h"

using namespace seqpar;
using namespace seqpar::test;

TEST_CASE("A probe leaves channels empty and their ends agreed") {
  for (const int size : {2, 3, 5}) {
    ThreadPeers peers(size, 2);
    std::vector<ProbeTimes> times(static_cast<size_t>(size) * 2);
    std::atomic<int> done = 0;
    for (int repeat = 0; repeat < 2; ++repeat) {
      peers.run(1, [&](const LaneThread& thread) {
        const auto number = static_cast<size_t>(thread.view.self * 2 + thread.lane);
        using Probe = ProbeLane<ThreadMemory, ThreadGroup>;
        const auto probe = [&] { return Probe(thread.view, thread.lane, thread.group, thread.positions); };
        if (thread.lane == 0 && !probe().runTokens(times[number])) return;
        if (probe().runStream(times[number], 3)) ++done;  // enough to go round the rings
      });
    }
    CAPTURE(size);
    REQUIRE(done == size * 4);
    for (int peer = 0; peer < size; ++peer) {
      const int next = (peer + 1) % size;
      CHECK(peers.linesPublished(peer, next) == 0);
      for (int lane = 0; lane < 2; ++lane) {
        CHECK(peers.state(peer, next, lane).sent == peers.state(next, peer, lane).received);
        CHECK(peers.state(peer, next, lane).sent > kRingLines);
        const ProbeTimes& each = times[static_cast<size_t>(peer * 2 + lane)];
        CHECK(each.streamEnd > each.streamBegin);
        CHECK((each.tokens > 0) == (lane == 0));
      }
    }
  }
}
