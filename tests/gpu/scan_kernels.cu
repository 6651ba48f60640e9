// The element-wise All-Scan kernels: every algorithm against the definition, on all GPUs and with several ranks on one.
// Exit status 77: no GPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/convert.h"
#include "common/draw_seed.h"
#include "reference_scan.h"
#include "scan/peers/backend.h"
#include "scan_draw.h"
#include "scan_rows.h"
#include "support/bounds.h"
#include "support/scan_buffers.cuh"

using namespace seqpar;
using namespace seqpar::test;

namespace {

struct Call {
  std::unique_ptr<const ScanCase> scanCase;  ///< what the buffers of the ranks point to
  Numbers numbers;
  seqparScanAlgorithm_t algorithm;
  std::vector<DeviceBuffers> ranks;
};

Call makeCall(std::mt19937_64& random, const DeviceRanks& peers, const ScanSpec& spec, Numbers numbers,
              seqparScanAlgorithm_t algorithm) {
  Call call{std::make_unique<ScanCase>(makeScanCase(spec, numbers, random())), numbers, algorithm, {}};
  const std::size_t skew = random() % 4 == 0 ? sizeOf(spec.stateType) : 0;
  for (int rank = 0; rank < spec.size; ++rank) {
    call.ranks.emplace_back(*call.scanCase, rank, drawOutputs(random), peers.deviceOf(rank), skew);
  }
  return call;
}

Call drawCall(std::mt19937_64& random, const DeviceRanks& peers, seqparScanAlgorithm_t algorithm) {
  static const DrawnSizes kSizes{{1, 2, 3, 6, 32}, {1, 3, 16, 33, 64}, {1, 5, 16, 24, 128}};
  const Numbers numbers = pick(random, {Numbers::Exact, Numbers::Random});
  const ScanSpec spec = drawElementwise(random, peers.size(), numbers, kSizes);
  return makeCall(random, peers, spec, numbers, algorithm);
}

void enqueue(const DeviceRanks& peers, Call& call) {
  const ScanSpec& spec = call.scanCase->spec;
  std::vector<int> order;
  for (int position = 0; position < spec.size; ++position) order.push_back(spec.rankAt(position));
  for (int rank = 0; rank < spec.size; ++rank) {
    const CurrentDevice current(peers.deviceOf(rank));
    launchPeerScan(peers.view(rank), call.ranks[static_cast<std::size_t>(rank)].problem(), order,
                   scanAlgorithm(call.algorithm), peers.stream(rank));
  }
}

/// The error as text.
std::string judge(Call& call) {
  const auto reference = referenceScan(*call.scanCase);
  for (std::size_t rank = 0; rank < call.ranks.size(); ++rank) {
    const std::string wrong = firstWrong(call.ranks[rank], call.scanCase->spec, reference[rank], call.numbers);
    if (!wrong.empty()) return concat("rank ", rank, ": ", wrong);
  }
  return "";
}

using Draw = std::function<Call(std::mt19937_64&, const DeviceRanks&)>;

/// Calls, `atOnce` of them without synchronization between.
bool checkCalls(int size, int gpus, int channels, int batches, int atOnce, std::uint64_t seed, const Draw& draw) {
  std::mt19937_64 random(seed);
  const DeviceRanks peers(size, channels, gpus, patienceNs(2));
  for (int batch = 0; batch < batches; ++batch) {
    std::vector<Call> calls;
    for (int i = 0; i < atOnce; ++i) calls.push_back(draw(random, peers));
    for (Call& call : calls) enqueue(peers, call);
    peers.synchronize();
    for (int rank = 0; rank < size; ++rank) {
      if (peers.timedOut(rank) == 0) continue;
      std::printf("%d ranks, seed %llu, batch %d: rank %d gave up waiting for %u\n", size,
                  static_cast<unsigned long long>(seed), batch, rank, peers.timedOut(rank) - 1);
      return false;
    }
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::string wrong = judge(calls[i]);
      if (wrong.empty()) continue;
      std::ostringstream spec;
      spec << calls[i].scanCase->spec;
      std::printf("seed %llu, batch %d, call %zu, %s, %s: %s\n", static_cast<unsigned long long>(seed), batch, i,
                  seqparScanAlgorithmName(calls[i].algorithm), spec.str().c_str(), wrong.c_str());
      return false;
    }
  }
  std::printf("%d ranks on %d GPUs, %d channels: %d calls right\n", size, std::min(size, gpus), channels,
              batches * atOnce);
  return true;
}

bool checkRandom(int size, int gpus, int channels, int batches, int atOnce, std::uint64_t seed) {
  return checkCalls(size, gpus, channels, batches, atOnce, seed, [](std::mt19937_64& random, const DeviceRanks& peers) {
    return drawCall(random, peers, oneOf(random, peerAlgorithms()));
  });
}

/// Few channels with as many threads as a CTA has wrap around in their FIFOs, from any position.
bool checkFewChannels(int gpus, std::uint64_t seed) {
  return checkCalls(2, gpus, 1, 2, 12, seed, [](std::mt19937_64& random, const DeviceRanks& peers) {
    ScanSpec spec;
    spec.size = peers.size();
    spec.op = seqparScanDiag;
    spec.heads = 1 + random() % 4;
    spec.dk = 64;
    spec.dv = 128 + 4 * (random() % 30);
    spec.flags = random() % 2 == 0;
    return makeCall(random, peers, spec, Numbers::Exact, random() % 2 == 0 ? seqparScanChain : seqparScanLasp1);
  });
}

/// An absent rank: the others end in time, and report the rank that they waited for.
bool checkAbsent(int gpus) {
  std::mt19937_64 random(3);
  for (const auto algorithm : peerAlgorithms()) {
    const DeviceRanks peers(3, 4, gpus, 50000000);
    Call call = drawCall(random, peers, algorithm);
    const int order[] = {0, 1, 2};
    for (int rank = 1; rank < 3; ++rank) {
      const CurrentDevice current(peers.deviceOf(rank));
      launchPeerScan(peers.view(rank), call.ranks[static_cast<std::size_t>(rank)].problem(), order,
                     scanAlgorithm(algorithm), peers.stream(rank));
    }
    peers.synchronize();
    if (peers.timedOut(1) == 0 || peers.timedOut(2) == 0) {
      std::printf("%s: a rank that needs rank 0, which is not there, did not give up\n",
                  seqparScanAlgorithmName(algorithm));
      return false;
    }
  }
  std::printf("an absent rank is noticed by all algorithms\n");
  return true;
}

int run(int argumentCount, char** arguments) {
  const int gpus = reachableGpus();
  if (gpus == 0) {
    std::printf("no GPU\n");
    return 77;
  }
  const bool small = argumentCount > 1 && std::strcmp(arguments[1], "--small") == 0;
  const std::uint64_t seed = argumentCount > 2 ? std::strtoull(arguments[2], nullptr, 10) : seqpar::test::drawSeed();
  if (small) return checkRandom(3, gpus, 2, 1, 14, seed) ? 0 : 1;
  for (int size = 1; size <= 8; ++size) {
    if (!checkRandom(size, gpus, 1 + size % 4 * 5, 6, 24, seed + static_cast<std::uint64_t>(size))) return 1;
  }
  return checkFewChannels(gpus, seed) && checkAbsent(gpus) ? 0 : 1;
}

}  // namespace

int main(int argumentCount, char** arguments) {
  // Kernels that wait for each other must not share a queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  try {
    return run(argumentCount, arguments);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
