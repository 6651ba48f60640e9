// An absent peer: all ranks that depend on it give up in time, and publish nothing more.
#include <catch2/catch.hpp>

#include "scan_on_threads.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

ScanCase makeCase(int size) {
  ScanSpec spec;
  spec.size = size;
  spec.heads = 2;
  spec.dk = 16;
  spec.dv = 64;
  return makeScanCase(spec, Numbers::Exact, 5);
}

struct Fault {
  int size;
  int absent;
  seqparScanAlgorithm_t algorithm;
};

/// All ranks except one run a scan; returns which ranks completed.
std::vector<bool> runWithout(ThreadPeers& peers, const Fault& fault) {
  ThreadScan scan(peers, makeCase(fault.size), std::vector<Outputs>(static_cast<size_t>(fault.size), Outputs::Both), 1);
  std::vector<int> present;
  for (int rank = 0; rank < fault.size; ++rank) {
    if (rank != fault.absent) present.push_back(rank);
  }
  std::vector<std::uint8_t> done(static_cast<size_t>(fault.size), 0);
  peers.run(
      1,
      [&](const ChannelThread& thread) {
        if (scan.run(fault.algorithm, thread)) done[static_cast<size_t>(thread.view.self)] = 1;
      },
      present);
  return {done.begin(), done.end()};
}

}  // namespace

TEST_CASE("A chain sends nothing past an absent rank") {
  for (const auto algorithm : {seqparScanChain, seqparScanLasp1}) {
    ThreadPeers peers(4, 1, std::chrono::milliseconds(50));
    const auto done = runWithout(peers, {4, 1, algorithm});
    CAPTURE(seqparScanAlgorithmName(algorithm));
    CHECK(done == std::vector<bool>{true, false, false, false});
    CHECK(peers.timedOut(0) == 0);
    CHECK(peers.timedOut(2) == 2);
    CHECK(peers.timedOut(3) == 3);
    CHECK(peers.packetsPublished(2, 3) == 0);
    CHECK(peers.creditSent(1, 2) == 0);
    CHECK(peers.creditSent(2, 3) == 0);
    CHECK(peers.state(2, 3, 0).sent == 0);
  }
}

TEST_CASE("A rank that waits for an absent rank times out in every algorithm") {
  for (const auto algorithm : peerAlgorithms()) {
    ThreadPeers peers(5, 1, std::chrono::milliseconds(50));
    const auto done = runWithout(peers, {5, 0, algorithm});
    CAPTURE(seqparScanAlgorithmName(algorithm));
    for (int rank = 1; rank < 5; ++rank) {
      CAPTURE(rank);
      CHECK_FALSE(done[static_cast<size_t>(rank)]);
      CHECK(peers.timedOut(rank) != 0);
      for (int other = 0; other < 5; ++other) {
        CHECK(peers.creditSent(other, rank) == 0);
        CHECK(peers.state(rank, other, 0).sent == 0);
      }
    }
  }
}

TEST_CASE("An owner that timed out sends no x") {
  ThreadPeers peers(4, 1, std::chrono::milliseconds(50));
  const ScanSpec spec = makeCase(4).spec;
  runWithout(peers, {4, 0, seqparScanTransposed});
  // A shard's map is one packet for four elements, and one for four factors; each factor applies to 64 elements.
  const size_t shard = spec.elements() / 4 / 4;
  for (int from = 1; from < 3; ++from) {
    for (int to = 1; to < 4; ++to) {
      if (from == to) continue;
      CAPTURE(from, to);
      CHECK(peers.packetsPublished(from, to) == shard + shard / 64);
    }
  }
  CHECK(peers.packetsPublished(3, 1) == 0);
}

TEST_CASE("Abort ends a scan") {
  ThreadPeers peers(3, 1, std::chrono::milliseconds(0));
  std::jthread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    peers.abort();
  });
  const auto done = runWithout(peers, {3, 0, seqparScanOneshot});
  CHECK(done == std::vector<bool>(3, false));
}
