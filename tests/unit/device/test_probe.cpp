// The link measurement finishes for any number of peers, leaves FIFOs unchanged, and measures time.
#include <catch2/catch.hpp>

#include "kernels/scan/probe_program.h"
#include "thread_peers.h"

using namespace seqpar;
using namespace seqpar::test;

TEST_CASE("A probe leaves fifos empty and their cursors equal") {
  for (const int size : {2, 3, 5}) {
    ThreadPeers peers(size, 2);
    std::vector<ProbeTimes> times(static_cast<size_t>(size) * 2);
    std::atomic<int> done = 0;
    for (int repeat = 0; repeat < 2; ++repeat) {
      peers.run(1, [&](const ChannelThread& thread) {
        const auto number = static_cast<size_t>(thread.view.self * 2 + thread.channel);
        using Probe = ProbeProgram<ThreadMemory, ThreadGroup>;
        const auto probe = [&] { return Probe(thread.view, thread.channel, thread.group, thread.positions); };
        if (thread.channel == 0 && !probe().runTokens(times[number])) return;
        if (probe().runStream(times[number], 3)) ++done;  // enough to go round the rings
      });
    }
    CAPTURE(size);
    REQUIRE(done == size * 4);
    for (int peer = 0; peer < size; ++peer) {
      const int next = (peer + 1) % size;
      CHECK(peers.packetsPublished(peer, next) == 0);
      for (int channel = 0; channel < 2; ++channel) {
        CHECK(peers.state(peer, next, channel).sent == peers.state(next, peer, channel).received);
        CHECK(peers.state(peer, next, channel).sent > kRingPackets);
        const ProbeTimes& each = times[static_cast<size_t>(peer * 2 + channel)];
        CHECK(each.streamEnd > each.streamBegin);
        CHECK((each.tokens > 0) == (channel == 0));
      }
    }
  }
}
