// Every algorithm of the kernels against the definition of All-Scan: exact comparison if the arithmetic is exact.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "base/error.h"
#include "common/covering.h"
#include "reference_scan.h"
#include "scan_draw.h"
#include "scan_on_threads.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// The error of the results as text.
std::string judge(ThreadScan& scan, Numbers numbers) {
  const auto reference = referenceScan(scan.scanCase());
  for (int rank = 0; rank < scan.scanCase().spec.size; ++rank) {
    ScanBuffers& buffers = scan.buffers(rank);
    std::string wrong = firstWrong(buffers, scan.scanCase().spec, reference[static_cast<size_t>(rank)], numbers);
    if (wrong.empty() && !buffers.inputsIntact()) wrong = "an input was changed";
    if (!wrong.empty()) return concat("rank ", rank, ": ", wrong);
  }
  return "";
}

struct Call {
  seqparScanAlgorithm_t algorithm;
  Numbers numbers;
  std::unique_ptr<ThreadScan> scan;
};

Call drawCall(std::mt19937_64& random, const ThreadPeers& peers, seqparScanAlgorithm_t algorithm) {
  const Numbers numbers = pick(random, {Numbers::Exact, Numbers::Random});
  const ScanSpec spec =
      drawElementwise(random, peers.size(), numbers, {{1, 2, 3, 6}, {1, 3, 16, 33}, {1, 5, 16, 24, 128}});
  std::vector<Outputs> outputs;
  for (int rank = 0; rank < spec.size; ++rank) outputs.push_back(drawOutputs(random));
  const int channels = 1 + static_cast<int>(random() % static_cast<unsigned>(peers.channels()));
  return {algorithm, numbers,
          std::make_unique<ThreadScan>(peers, makeScanCase(spec, numbers, random()), outputs, channels)};
}

/// Calls follow each other with nothing between them.
void runCalls(ThreadPeers& peers, int threadsOfChannel, std::vector<Call>& calls) {
  std::atomic<bool> ok = true;
  peers.run(threadsOfChannel, [&](const ChannelThread& thread) {
    for (const Call& call : calls) {
      if (call.scan->run(call.algorithm, thread)) continue;
      ok = false;
      return;
    }
  });
  REQUIRE(ok);
  for (Call& call : calls) {
    CAPTURE(call.scan->scanCase().spec, seqparScanAlgorithmName(call.algorithm));
    REQUIRE(judge(*call.scan, call.numbers) == "");
  }
  for (int sender = 0; sender < peers.size(); ++sender) {
    for (int receiver = 0; receiver < peers.size(); ++receiver) {
      REQUIRE(peers.packetsPublished(sender, receiver) == 0);
    }
  }
}

ScanSpec largeSpec(int size) {
  ScanSpec spec;
  spec.size = size;
  spec.heads = 3;
  spec.dk = 64;
  spec.dv = seqpar::test::kSanitized ? 256 : 1024;  // 4 or 16 rings
  spec.initial = true;
  return spec;
}

}  // namespace

TEST_CASE("All algorithms, back to back on one set of fifos") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int size = 1; size <= 8; ++size) {
    const int threadsOfChannel = size <= 3 ? 2 : 1;
    ThreadPeers peers(size, 2);
    std::vector<Call> calls;
    for (int i = 0; i < 36; ++i) {
      calls.push_back(drawCall(random, peers, oneOf(random, peerAlgorithms())));
    }
    CAPTURE(size);
    runCalls(peers, threadsOfChannel, calls);
  }
}

TEST_CASE("The program for small states agrees with the general programs") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  const auto run = [&](int size, int channels, int threadsOfChannel, std::size_t mostVecs, int count) {
    ThreadPeers peers(size, channels);
    std::vector<Call> calls;
    for (int i = 0; i < count; ++i) {
      ScanSpec spec;
      spec.size = size;
      spec.op = pick(random, {seqparScanSum, seqparScanScalar, seqparScanDiag});
      spec.direction = pick(random, {seqparForward, seqparReverse});
      spec.dk = 1 + random() % (mostVecs / 2);
      spec.dv = 4 * (1 + random() % (mostVecs / spec.dk));
      const Numbers numbers = pick(random, {Numbers::Exact, Numbers::Random});
      if (spec.op != seqparScanSum) {
        spec.decayForm = pick(random, {seqparDecayLinear, seqparDecayLog, seqparDecayLog2});
        if (numbers == Numbers::Exact && spec.decayForm == seqparDecayLog) spec.decayForm = seqparDecayLog2;
      }
      spec.initial = random() % 2 == 0;
      std::vector<Outputs> outputs;
      for (int rank = 0; rank < size; ++rank) outputs.push_back(drawOutputs(random));
      calls.push_back({pick(random, {seqparScanChain, seqparScanOneshot, seqparScanTransposed, seqparScanLasp2}),
                       numbers,
                       std::make_unique<ThreadScan>(peers, makeScanCase(spec, numbers, random()), outputs, channels)});
    }
    CAPTURE(size, channels);
    runCalls(peers, threadsOfChannel, calls);
  };
  for (int size = 1; size <= 8; ++size) run(size, 1, 3, 3, 40);
  run(3, 2, 40, 64, 20);
}

TEST_CASE("Small states wrap around their rings") {
  // Each call leaves a credit that a later call sends.
  for (const auto algorithm : {seqparScanChain, seqparScanOneshot, seqparScanTransposed}) {
    ScanSpec spec;
    spec.size = 3;
    spec.dk = 3;
    spec.dv = 4;
    ThreadPeers peers(3, 1);
    std::vector<Call> calls;
    const std::size_t enough = 2 * kRingPackets / 3;
    calls.push_back({algorithm, Numbers::Exact,
                     std::make_unique<ThreadScan>(peers, makeScanCase(spec, Numbers::Exact, 4),
                                                  std::vector<Outputs>(3, Outputs::Both), 1)});
    peers.run(3, [&](const ChannelThread& thread) {
      for (std::size_t i = 1; i < enough; ++i) calls.front().scan->run(algorithm, thread);
    });
    runCalls(peers, 3, calls);
    CAPTURE(seqparScanAlgorithmName(algorithm));
    CHECK(peers.creditSent(0, 1) >= kRingPackets);
  }
}

TEST_CASE("States larger than the rings") {
  for (const auto algorithm : peerAlgorithms()) {
    for (const int size : {2, 4}) {
      ThreadPeers peers(size, 1);
      const ScanSpec spec = largeSpec(size);
      const std::vector<Outputs> outputs(static_cast<size_t>(size), Outputs::Both);
      const auto numbers = size == 2 ? Numbers::Random : Numbers::Exact;
      std::vector<Call> calls;
      calls.push_back(
          {algorithm, numbers, std::make_unique<ThreadScan>(peers, makeScanCase(spec, numbers, 11), outputs, 1)});
      CAPTURE(seqparScanAlgorithmName(algorithm), size);
      runCalls(peers, 1, calls);
      if (algorithm == seqparScanChain) CHECK(peers.creditSent(0, 1) >= kRingPackets);
    }
  }
}

TEST_CASE("More heads than one kernel supports flags for") {
  ThreadPeers peers(3, 1);
  ScanSpec spec;
  spec.size = 3;
  spec.heads = 5000;
  spec.sequences = 5000;
  spec.dk = 2;
  spec.dv = 3;
  spec.flags = true;
  const std::vector<Outputs> outputs(3, Outputs::Both);
  std::vector<Call> calls;
  for (const auto algorithm : peerAlgorithms()) {
    calls.push_back({algorithm, Numbers::Exact,
                     std::make_unique<ThreadScan>(peers, makeScanCase(spec, Numbers::Exact, 12), outputs, 1)});
  }
  runCalls(peers, 1, calls);
}

TEST_CASE("Infinities, NaN payloads and negative zeros are transferred; a factor of 0 discards them") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {std::bit_cast<float>(0xffffffffU),
                           std::bit_cast<float>(0x7f800001U),
                           kInfinity,
                           -kInfinity,
                           -0.0F,
                           1e-42F,
                           3.0e38F,
                           0.0F};
  for (const auto algorithm : peerAlgorithms()) {
    for (const float factor : {1.0F, 0.0F}) {
      ThreadPeers peers(3, 1);
      ScanSpec spec;
      spec.size = 3;
      spec.op = seqparScanScalar;
      spec.dv = std::size(special);
      ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 13);
      for (auto& rank : scanCase.ranks) {
        rank.transition.assign(1, factor);
        rank.state.assign(spec.elements(), -0.0F);
      }
      scanCase.ranks[0].state.assign(std::begin(special), std::end(special));
      ThreadScan scan(peers, scanCase, std::vector<Outputs>(3, Outputs::Both), 1);
      peers.run(1, [&](const ChannelThread& thread) { scan.run(algorithm, thread); });
      CAPTURE(seqparScanAlgorithmName(algorithm), factor);
      const auto second = scan.buffers(1).prefixValues();
      const auto last = scan.buffers(2).totalValues();
      for (size_t i = 0; i < std::size(special); ++i) {
        CAPTURE(i, special[i], second[i], last[i]);
        if (std::isnan(special[i])) {
          CHECK(std::isnan(second[i]));
          CHECK(std::isnan(last[i]) == (factor != 0));
        } else {
          CHECK(std::bit_cast<std::uint32_t>(second[i]) == std::bit_cast<std::uint32_t>(special[i]));
          const float expected = factor == 0 ? -0.0F : special[i];
          CHECK(std::bit_cast<std::uint32_t>(last[i]) == std::bit_cast<std::uint32_t>(expected));
        }
      }
    }
  }
}
