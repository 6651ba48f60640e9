// MATRIX All-Scan kernels between ranks without a communicator, against the definition in fp64. Exit status 77: no GPU.
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "common/draw_seed.h"
#include "reference_scan.h"
#include "scan/peers/backend.h"
#include "scan_draw.h"
#include "scan_rows.h"
#include "support/bounds.h"
#include "support/scan_buffers.cuh"

namespace {

using namespace seqpar;
using namespace seqpar::test;

int failures = 0;
int checks = 0;

void check(bool fine, const std::string& what) {
  ++checks;
  if (fine) return;
  std::printf("failed: %s\n", what.c_str());
  ++failures;
}

std::string words(const ScanSpec& spec, seqparScanAlgorithm_t algorithm, std::uint64_t seed) {
  std::ostringstream out;
  out << seqparScanAlgorithmName(algorithm) << ", " << spec << ", seed " << seed;
  return out.str();
}

/// Launches one scan on all ranks; nothing waits.
std::vector<DeviceBuffers> launch(const DeviceRanks& ranks, const ScanCase& scanCase, seqparScanAlgorithm_t algorithm,
                                  Outputs outputs, std::size_t shift) {
  std::vector<int> order;
  for (int p = 0; p < ranks.size(); ++p) order.push_back(scanCase.spec.rankAt(p));
  std::vector<DeviceBuffers> buffers;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    buffers.emplace_back(scanCase, rank, outputs, ranks.deviceOf(rank), shift);
  }
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const CurrentDevice current(ranks.deviceOf(rank));
    launchPeerScan(ranks.view(rank), buffers[static_cast<std::size_t>(rank)].problem(), order, scanAlgorithm(algorithm),
                   ranks.stream(rank));
  }
  return buffers;
}

double compare(const ScanCase& scanCase, std::vector<DeviceBuffers>& buffers, Numbers numbers,
               const std::string& what) {
  const std::vector<ReferenceRank> expected = referenceScan(scanCase);
  double worst = 0;
  for (int rank = 0; rank < scanCase.spec.size; ++rank) {
    DeviceBuffers& mine = buffers[static_cast<std::size_t>(rank)];
    const ReferenceRank& right = expected[static_cast<std::size_t>(rank)];
    const double prefix = mine.wantsPrefix() ? excess(scanCase.spec, right.prefix, mine.prefixValues(), numbers) : 0.0;
    const double total = mine.wantsTotal() ? excess(scanCase.spec, right.total, mine.totalValues(), numbers) : 0.0;
    check(prefix <= 1, "prefix of rank " + std::to_string(rank) + ": " + what);
    check(total <= 1, "total of rank " + std::to_string(rank) + ": " + what);
    worst = std::max({worst, prefix, total});
  }
  return worst;
}

void checkAlive(const DeviceRanks& ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    check(ranks.timedOut(rank) == 0, "rank " + std::to_string(rank) + " gave up");
  }
}

ScanSpec randomSpec(std::mt19937_64& random, int size) {
  static const DrawnSizes kSizes{
      {1, 2, 3, 4, 5, 6}, {1, 3, 8, 16, 17, 37, 64, 100, 128, 128}, {1, 2, 5, 16, 31, 48, 128}};
  ScanSpec spec = drawMatrix(random, size, kSizes);
  if (random() % 3 == 0) {  // operators with separate kernels
    spec.dk = random() % 2 == 0 ? 64 : 128;
    spec.dv = 16 * (1 + random() % 8);
    spec.stateType = spec.wireType = seqparFloat32;
  }
  return spec;
}

/// Random problems, several at a time, launched without waiting in between.
void checkRandomRuns(const DeviceRanks& ranks, std::mt19937_64& random, int rounds) {
  constexpr int kTogether = 6;
  double worst = 0;
  for (int round = 0; round < rounds; ++round) {
    struct Run {
      std::unique_ptr<const ScanCase> scanCase;  ///< the buffers refer to it
      std::vector<DeviceBuffers> buffers;
      Numbers numbers;
      std::string what;
    };
    std::vector<Run> runs;
    for (int i = 0; i < kTogether; ++i) {
      const std::uint64_t seed = random();
      const ScanSpec spec = randomSpec(random, ranks.size());
      const seqparScanAlgorithm_t algorithm = random() % 3 == 0 ? seqparScanChain : oneOf(random, matrixAlgorithms());
      const Numbers numbers = pick(random, {Numbers::Exact, Numbers::Random});
      ScanProblem shape;
      shape.dk = spec.dk;
      shape.wireType = spec.wireType;
      check(matrixRowFits(scanAlgorithm(algorithm), shape, ranks.view(0).channels),
            words(spec, algorithm, seed) + " is refused");
      Run run{std::make_unique<const ScanCase>(makeScanCase(spec, numbers, seed)),
              {},
              numbers,
              words(spec, algorithm, seed)};
      const std::size_t shift = random() % 3 == 0 ? 4 : 0;
      run.buffers = launch(ranks, *run.scanCase, algorithm, drawOutputs(random), shift);
      runs.push_back(std::move(run));
    }
    ranks.synchronize();
    for (Run& run : runs) {
      const double excess = compare(*run.scanCase, run.buffers, run.numbers, run.what);
      if (run.numbers == Numbers::Random) worst = std::max(worst, excess);
    }
    checkAlive(ranks);
    if (failures > 10) return;
  }
  std::printf("%d ranks: %d rounds, largest error %.2f of what is allowed\n", ranks.size(), rounds, worst);
}

/// Matrices larger than the registers, and than shared memory.
void checkLarge(const DeviceRanks& ranks, std::mt19937_64& random) {
  for (const std::size_t dk : {129, 200, 400, 752}) {
    for (const seqparDirection_t direction : {seqparForward, seqparReverse}) {
      ScanSpec spec;
      spec.size = ranks.size();
      spec.op = seqparScanMatrix;
      spec.direction = direction;
      spec.heads = 2;
      spec.dk = dk;
      spec.dv = 40;
      for (const seqparScanAlgorithm_t algorithm : {seqparScanChain, seqparScanLasp1, seqparScanLasp2}) {
        const std::uint64_t seed = random();
        const Numbers numbers = algorithm == seqparScanChain ? Numbers::Random : Numbers::Exact;
        const ScanCase scanCase = makeScanCase(spec, numbers, seed);
        const Outputs outputs = direction == seqparForward ? Outputs::PrefixInPlace : Outputs::TotalInPlace;
        std::vector<DeviceBuffers> buffers = launch(ranks, scanCase, algorithm, outputs, 0);
        ranks.synchronize();
        compare(scanCase, buffers, numbers, words(spec, algorithm, seed));
      }
    }
  }
}

/// Infinities and NaN reach exactly the elements that depend on them, also through tensor cores; flags discard them.
void checkNonFinite(const DeviceRanks& ranks) {
  const float values[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::max()};
  for (const auto& [dk, dv] : {std::pair<std::size_t, std::size_t>{48, 20}, {64, 32}, {128, 16}}) {
    ScanSpec spec;
    spec.size = ranks.size();
    spec.op = seqparScanMatrix;
    spec.heads = 2;
    spec.dk = dk;
    spec.dv = dv;
    for (const seqparScanAlgorithm_t algorithm : matrixAlgorithms()) {
      for (const float value : values) {
        ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 7);
        for (ScanCase::Rank& rank : scanCase.ranks) {
          for (float& factor : rank.transition) factor = 0x1p-7F;
          for (float& number : rank.state) number = 1;
          rank.transition[9 * dk + 5] = 0;  // row 9 is independent of row 5
        }
        scanCase.ranks[0].state[5 * dv + 3] = value;
        if (spec.size > 2) scanCase.ranks[2].flags[0] = SEQPAR_SCAN_CUT;
        std::vector<DeviceBuffers> buffers = launch(ranks, scanCase, algorithm, Outputs::Both, 0);
        ranks.synchronize();
        compare(scanCase, buffers, Numbers::Random, words(spec, algorithm, 7) + ", with " + std::to_string(value));
      }
    }
  }
}

/// Replays the same graphs many times: positions in the FIFOs advance without the host.
void checkGraphs(const DeviceRanks& ranks, std::mt19937_64& random) {
  ScanSpec spec;
  spec.size = ranks.size();
  spec.op = seqparScanMatrix;
  spec.heads = 3;
  spec.dk = 64;
  spec.dv = 48;
  spec.initial = true;
  const ScanCase scanCase = makeScanCase(spec, Numbers::Exact, random());
  std::vector<int> order;
  for (int p = 0; p < ranks.size(); ++p) order.push_back(spec.rankAt(p));
  std::vector<DeviceBuffers> buffers;
  std::vector<cudaGraphExec_t> graphs;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const CurrentDevice current(ranks.deviceOf(rank));
    buffers.emplace_back(scanCase, rank, Outputs::Both, ranks.deviceOf(rank), 0);
    checkCuda(cudaStreamBeginCapture(ranks.stream(rank), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (const seqparScanAlgorithm_t algorithm : {seqparScanChain, seqparScanLasp1}) {
      launchPeerScan(ranks.view(rank), buffers.back().problem(), order, scanAlgorithm(algorithm), ranks.stream(rank));
    }
    cudaGraph_t graph = nullptr;
    checkCuda(cudaStreamEndCapture(ranks.stream(rank), &graph), "cudaStreamEndCapture");
    cudaGraphExec_t instance = nullptr;
    checkCuda(cudaGraphInstantiate(&instance, graph, 0), "cudaGraphInstantiate");
    checkCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    graphs.push_back(instance);
  }
  for (int i = 0; i < 500; ++i) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const CurrentDevice current(ranks.deviceOf(rank));
      checkCuda(cudaGraphLaunch(graphs[static_cast<std::size_t>(rank)], ranks.stream(rank)), "cudaGraphLaunch");
    }
  }
  ranks.synchronize();
  compare(scanCase, buffers, Numbers::Exact, "500 replays of a graph");
  for (const cudaGraphExec_t graph : graphs) checkCuda(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
}

/// An absent rank: the others give up, and report it.
void checkGiveUp(int gpus) {
  constexpr std::uint64_t kShortNs = 20'000'000;
  DeviceRanks ranks(2, 4, gpus, kShortNs);
  ScanSpec spec;
  spec.size = 2;
  spec.op = seqparScanMatrix;
  spec.heads = 4;
  spec.dk = 32;
  spec.dv = 32;
  const ScanCase scanCase = makeScanCase(spec, Numbers::Exact, 1);
  const CurrentDevice current(ranks.deviceOf(1));
  DeviceBuffers buffers(scanCase, 1, Outputs::Both, ranks.deviceOf(1), 0);
  launchPeerScan(ranks.view(1), buffers.problem(), std::vector<int>{0, 1}, scanAlgorithm(seqparScanChain),
                 ranks.stream(1));
  checkCuda(cudaStreamSynchronize(ranks.stream(1)), "cudaStreamSynchronize");
  check(ranks.timedOut(1) == 1, "a rank whose predecessor never comes gives up for it");
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const int gpus = reachableGpus();
    if (gpus == 0) {
      std::printf("skipped: no GPU\n");
      return 77;
    }
    const int rounds = count > 1 ? std::stoi(arguments[1]) : 20;
    const std::uint64_t seed = seqpar::test::drawSeed();
    std::printf("seed %llu, %d GPUs\n", static_cast<unsigned long long>(seed), gpus);
    std::mt19937_64 random(seed);
    for (const int size : {1, 2, 3, 5, 8}) {
      const DeviceRanks ranks(size, size > 5 ? 12 : 16, gpus, seqpar::test::patienceNs(10));
      checkRandomRuns(ranks, random, rounds);
      checkLarge(ranks, random);
      checkNonFinite(ranks);
      checkGraphs(ranks, random);
    }
    checkGiveUp(gpus);
  } catch (const std::exception& error) {
    check(false, error.what());
  }
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
