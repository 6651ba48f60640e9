// The channel programs of the MATRIX kernels, on threads, against the definition.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "kernels/scan/matrix_maps.h"
#include "matrix_on_threads.h"
#include "reference_scan.h"
#include "scan_draw.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

void compare(ThreadMatrixScan& scan, Numbers numbers) {
  const ScanCase& scanCase = scan.scanCase();
  const std::vector<ReferenceRank> expected = referenceScan(scanCase);
  for (int rank = 0; rank < scanCase.spec.size; ++rank) {
    ScanBuffers& mine = scan.buffers(rank);
    const ReferenceRank& right = expected[static_cast<std::size_t>(rank)];
    CAPTURE(rank);
    if (mine.wantsPrefix()) CHECK(excess(scanCase.spec, right.prefix, mine.prefixValues(), numbers) <= 1);
    if (mine.wantsTotal()) CHECK(excess(scanCase.spec, right.total, mine.totalValues(), numbers) <= 1);
    CHECK(mine.inputsIntact());
  }
}

const DrawnSizes kSizes{{1, 2, 3, 4, 5}, {1, 3, 8, 16, 17, 33, 48}, {1, 2, 5, 16, 31, 48, 70}};

}  // namespace

TEST_CASE("MATRIX channels agree with the definition in repeated calls") {
  const int size = GENERATE(1, 2, 3, 5, 8);
  const int threads = GENERATE(1, 2, 3, 4);
  const seqpar::test::Seed seed;
  CAPTURE(size, threads);
  std::mt19937_64 random(seed);
  ThreadPeers peers(size, 2);
  struct Call {
    ThreadMatrixScan scan;
    seqparScanAlgorithm_t algorithm;
    Numbers numbers;
  };
  std::vector<Call> calls;
  for (int i = 0; i < 12; ++i) {
    const ScanSpec spec = drawMatrix(random, size, kSizes);
    const Numbers numbers = pick(random, {Numbers::Exact, Numbers::Random});
    std::vector<Outputs> outputs;
    for (int rank = 0; rank < size; ++rank) outputs.push_back(drawOutputs(random));
    const int group = 1 + static_cast<int>(random() % 3);
    calls.push_back({ThreadMatrixScan(peers, makeScanCase(spec, numbers, random()), outputs, group, threads),
                     oneOf(random, matrixAlgorithms()), numbers});
  }
  peers.run(threads, [&](const ChannelThread& thread) {
    for (Call& call : calls) call.scan.run(call.algorithm, thread);
  });
  for (Call& call : calls) {
    CAPTURE(call.scan.scanCase().spec, seqparScanAlgorithmName(call.algorithm));
    compare(call.scan, call.numbers);
  }
}

TEST_CASE("MATRIX channels wrap around rings with more packets than slots") {
  const auto algorithm = GENERATE(from_range(matrixAlgorithms()));
  const int threads = GENERATE(1, 2);  // 2: teams, for CHAIN
  CAPTURE(seqparScanAlgorithmName(algorithm), threads);
  ScanSpec spec;
  spec.size = 3;
  spec.op = seqparScanMatrix;
  spec.heads = 12;
  spec.dk = 48;
  spec.dv = 192;
  ThreadPeers peers(spec.size, 1);
  const std::vector<Outputs> outputs(3, Outputs::Both);
  REQUIRE(spec.heads * spec.dk * spec.dv / 4 > kRingPackets);
  for (int round = 0; round < 3; ++round) {
    const int group = algorithm == seqparScanChain ? 1 : 2;
    ThreadMatrixScan scan(peers, makeScanCase(spec, Numbers::Exact, 11 + static_cast<std::uint64_t>(round)), outputs,
                          group, threads);
    peers.run(threads, [&](const ChannelThread& thread) { scan.run(algorithm, thread); });
    compare(scan, Numbers::Exact);
  }
}

TEST_CASE("MATRIX maps larger than one ring use the rings of two channels") {
  const auto algorithm = GENERATE(seqparScanOneshot, seqparScanTransposed, seqparScanDoubling, seqparScanLasp2);
  CAPTURE(seqparScanAlgorithmName(algorithm));
  ScanSpec spec;
  spec.size = 4;
  spec.op = seqparScanMatrix;
  spec.heads = 3;
  spec.dk = 128;
  spec.dv = 16;
  REQUIRE(mapPackets(128, 1, 1) > kSurePackets);
  REQUIRE(mapPackets(128, 1, 2) <= kSurePackets);
  ThreadPeers peers(spec.size, 3);  // the third is left over
  for (std::uint64_t round = 0; round < 3; ++round) {
    ThreadMatrixScan scan(peers, makeScanCase(spec, Numbers::Exact, 5 + round), std::vector<Outputs>(4, Outputs::Both),
                          1, 2);
    peers.run(2, [&](const ChannelThread& thread) { scan.run(algorithm, thread); });
    compare(scan, Numbers::Exact);
  }
}

TEST_CASE("MATRIX team channels agree with the other channels for flags, initial states and both directions") {
  const int size = GENERATE(1, 2, 4);
  const int threads = GENERATE(2, 4);
  const seqpar::test::Seed seed;
  CAPTURE(size, threads);
  std::mt19937_64 random(seed);
  ThreadPeers peers(size, 2);
  for (int i = 0; i < 12; ++i) {
    ScanSpec spec = drawMatrix(random, size, kSizes);
    spec.dk = random() % 2 == 0 ? 16 : 48;
    spec.dv = 16 * (1 + random() % 5);
    spec.stateType = spec.wireType = seqparFloat32;
    std::vector<Outputs> outputs;
    for (int rank = 0; rank < size; ++rank) outputs.push_back(drawOutputs(random));
    ThreadMatrixScan scan(peers, makeScanCase(spec, Numbers::Exact, random()), outputs, 1, threads);
    peers.run(threads, [&](const ChannelThread& thread) { scan.run(seqparScanChain, thread); });
    CAPTURE(spec);
    compare(scan, Numbers::Exact);
  }
}

TEST_CASE("MATRIX channels carry NaN and infinities to the elements of the definition") {
  const auto algorithm = GENERATE(from_range(matrixAlgorithms()));
  const int threads = GENERATE(1, 2);
  const float value = GENERATE(INFINITY, asFloat(0x7fc00000U), asFloat(0x7fffffffU), asFloat(0xffffffffU));
  CAPTURE(seqparScanAlgorithmName(algorithm), threads, value);
  ScanSpec spec;
  spec.size = 4;
  spec.op = seqparScanMatrix;
  spec.heads = 2;
  spec.dk = 48;
  spec.dv = 32;
  ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 7);
  for (ScanCase::Rank& rank : scanCase.ranks) {
    for (float& factor : rank.transition) factor = 0x1p-7F;
    for (float& number : rank.state) number = 1;
    rank.transition[9 * spec.dk + 5] = 0;  // row 9 is independent of row 5
  }
  scanCase.ranks[0].state[5 * spec.dv + 3] = value;
  scanCase.ranks[2].flags[0] = SEQPAR_SCAN_CUT;
  ThreadPeers peers(spec.size, 1);
  ThreadMatrixScan scan(peers, scanCase, std::vector<Outputs>(4, Outputs::Both), 1, threads);
  peers.run(threads, [&](const ChannelThread& thread) { scan.run(algorithm, thread); });
  compare(scan, Numbers::Random);
}

TEST_CASE("MATRIX channels that need an absent rank time out and send nothing further") {
  ScanSpec spec;
  spec.size = 3;
  spec.op = seqparScanMatrix;
  spec.heads = 2;
  spec.dk = 16;
  spec.dv = 32;
  const auto algorithm = GENERATE(from_range(matrixAlgorithms()));
  const int threads = GENERATE(2, 3);
  CAPTURE(seqparScanAlgorithmName(algorithm), threads);
  ThreadPeers peers(3, 1, std::chrono::milliseconds(50));
  ThreadMatrixScan scan(peers, makeScanCase(spec, Numbers::Exact, 3), std::vector<Outputs>(3, Outputs::Both), 1,
                        threads);
  peers.run(threads, [&](const ChannelThread& thread) { scan.run(algorithm, thread); }, {1, 2});
  CHECK(peers.timedOut(1) == 1);
  CHECK(peers.timedOut(2) != 0);
  CHECK(peers.creditSent(0, 1) == 0);
  if (algorithm != seqparScanChain && algorithm != seqparScanLasp1) return;
  CHECK(peers.timedOut(2) == 2);
  CHECK(peers.packetsPublished(1, 2) == 0);
}

TEST_CASE("Splitting a value into bf16 parts is exact") {
  std::mt19937 random(5);
  for (int i = 0; i < 100000; ++i) {
    const float value = asFloat(static_cast<std::uint32_t>(random()));
    const bool needsExact = sizeBits(value) >= kExactBits;
    const SplitNumber both = split(value, needsExact);
    const float sum = both.high + both.low;
    CAPTURE(value);
    CHECK((sum == value || (std::isnan(sum) && std::isnan(value))));
    if (needsExact) {
      CHECK(both.low == 0);
      CHECK((!std::isfinite(value) || std::abs(value) > 3.39e38F));
    } else {
      CHECK((asBits(both.high) & 0x1fffU) == 0);
      CHECK(std::abs(both.low) <= std::ldexp(std::abs(both.high), -11) + 0x1p-137F);
    }
  }
}
