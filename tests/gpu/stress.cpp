// gpu_stress calls|graphs|communicators [COUNT]: very many scans on all GPUs, a rank each, every result checked on the
// device. Exit status 77 with fewer than two GPUs.
#include <chrono>
#include <memory>
#include <random>

#include "common/draw_seed.h"
#include "gpu/support/prefix_sums.h"

using namespace seqpar::test;

namespace {

/// COUNT scans of random sizes by random algorithms, one right after the other.
void runCalls(const std::vector<seqparComm_t>& comms, unsigned count, std::uint64_t seed) {
  PrefixSums sums(comms.front());
  std::mt19937_64 random(seed);
  for (unsigned i = 0; i < count; ++i) {
    const DrawnScan scan(random);
    sums.enqueue(i, scan.elements, scan.algorithm, scan.reverse);
    // The launch queue is finite; a rank that is far ahead would only wait there.
    if (i % 1000 == 999) sums.check("back to back");
  }
  sums.check("back to back");
}

/// A graph of 5 scans, replayed COUNT / 5 times.
void runGraphs(const std::vector<seqparComm_t>& comms, unsigned count, std::uint64_t seed) {
  constexpr unsigned kScans = 5;
  PrefixSums sums(comms.front());
  std::mt19937_64 random(seed);
  cudaGraph_t graph = nullptr;
  expectCuda(cudaStreamBeginCapture(sums.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (unsigned i = 0; i < kScans; ++i) {
    const DrawnScan scan(random);
    sums.enqueue(i, scan.elements, scan.algorithm, scan.reverse);
  }
  expectCuda(cudaStreamEndCapture(sums.stream(), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t ready = nullptr;
  expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  for (unsigned i = 0; i < count / kScans; ++i) {
    expectCuda(cudaGraphLaunch(ready, sums.stream()), "cudaGraphLaunch");
    // Between replays, the communicator is also used directly.
    if (i % 100 == 99) {
      const DrawnScan scan(random);
      sums.enqueue(i, scan.elements, scan.algorithm, scan.reverse);
      sums.check("graphs");
    }
  }
  sums.check("graphs");
  expectCuda(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
  expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

/// Four communicators on four streams concurrently; the ranks use them in different orders.
void runCommunicators(const std::vector<seqparComm_t>& comms, unsigned count, std::uint64_t seed) {
  std::vector<std::unique_ptr<PrefixSums>> sums;
  std::vector<std::mt19937_64> shared;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    sums.push_back(std::make_unique<PrefixSums>(comms[i]));
    shared.emplace_back(seed + i);
  }
  int rank = 0;
  expectSuccess(seqparCommUserRank(comms.front(), &rank), "seqparCommUserRank");
  for (unsigned i = 0; i < count; ++i) {
    for (std::size_t n = 0; n < comms.size(); ++n) {
      const std::size_t which = (n + static_cast<std::size_t>(rank)) % comms.size();
      const DrawnScan scan(shared[which]);
      sums[which]->enqueue(i, scan.elements, scan.algorithm, scan.reverse);
    }
    if (i % 250 == 249) {
      for (auto& each : sums) each->check("four communicators");
    }
  }
  for (auto& each : sums) each->check("four communicators");
}

using Body = void (*)(const std::vector<seqparComm_t>&, unsigned, std::uint64_t);

int run(const char* name, Body body, int communicators, unsigned count, int gpus) {
  const auto seed = seqpar::test::drawSeed();
  std::printf("seed %llu, %u %s on %d GPUs\n", static_cast<unsigned long long>(seed), count, name, gpus);
  std::vector<seqparUniqueId> ids(static_cast<std::size_t>(communicators));
  for (auto& id : ids) expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = onThreads(gpus, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.device = rank;
    config.timeoutMs = patienceMs(30000);
    config.ctas = 32 / communicators;
    expectCuda(cudaSetDevice(rank), "cudaSetDevice");
    std::vector<seqparComm_t> comms(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      expectSuccess(seqparCommInitRankConfig(&comms[i], gpus, ids[i], rank, &config), "seqparCommInitRankConfig");
    }
    try {
      body(comms, count, seed);
    } catch (...) {
      for (auto* comm : comms) seqparCommAbort(comm);
      throw;
    }
    for (auto* comm : comms) expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%s%.1f s\n", errors.empty() ? "all right, " : errors.c_str(), seconds.count());
  return errors.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const unsigned given = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 0;
  const int gpus = requireGpus(2);
  DeviceBackend device(1);
  backend() = &device;
  try {
    if (name == "calls") return run("calls", runCalls, 1, given > 0 ? given : 1000000, gpus);
    if (name == "graphs") return run("replays", runGraphs, 1, given > 0 ? given : 5 * 100000, gpus);
    if (name == "communicators") return run("rounds", runCommunicators, 4, given > 0 ? given : 20000, gpus);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("usage: gpu_stress calls|graphs|communicators [COUNT]\n");
  return 2;
}
