// Times of All-Scan over NCCL, one rank a GPU: by calls, and in a CUDA graph. No test: prints microseconds, medians.
#include <algorithm>

#include "device/nccl_library.h"
#include "support/nccl_ranks.h"
#include "support/nccl_scan_cases.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

constexpr int kRepeats = 30;

struct DestroyTimer {
  void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
};
using Timer = std::unique_ptr<CUevent_st, DestroyTimer>;

Timer makeTimer() {
  cudaEvent_t event = nullptr;
  expectCuda(cudaEventCreate(&event), "cudaEventCreate");
  return Timer(event);
}

/// Median of the time on the device, each repetition after a meeting of all ranks.
double medianUs(NcclRank& mine, cudaStream_t stream, const std::function<void()>& work) {
  const Timer begin = makeTimer(), end = makeTimer();
  std::vector<double> times;
  std::vector<char> all(static_cast<std::size_t>(mine.nccl->size()));
  for (int i = 0; i < kRepeats; ++i) {
    mine.control.gatherValues(char{0}, std::span(all));
    expectCuda(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
    work();
    expectCuda(cudaEventRecord(end.get(), stream), "cudaEventRecord");
    mine.nccl->wait(stream);
    float ms = 0;
    expectCuda(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    times.push_back(ms * 1e3);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// 10 scans, in a graph: what one costs without the host.
double graphUs(NcclRank& mine, cudaStream_t stream, const std::function<void()>& work) {
  constexpr int kScans = 10;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  expectCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < kScans; ++i) work();
  expectCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  const double us =
      medianUs(mine, stream, [&] { expectCuda(cudaGraphLaunch(ready, stream), "cudaGraphLaunch"); }) / kScans;
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  return us;
}

/// The host's time for an exchange, without waiting for the device.
double hostUs(NcclComm& nccl) {
  constexpr int kCalls = 200;
  const auto stream = seqpar::makeStream();
  const DeviceArray<char> memory(512);
  const int next = (nccl.rank() + 1) % nccl.size();
  const int previous = (nccl.rank() + nccl.size() - 1) % nccl.size();
  const NcclSend send{next, memory.data(), 256};
  const NcclReceive receive{previous, memory.data() + 256, 256};
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) nccl.exchange({&send, 1}, {&receive, 1}, stream.get());
  const auto end = std::chrono::steady_clock::now();
  nccl.wait(stream.get());
  return std::chrono::duration<double>(end - start).count() / kCalls * 1e6;
}

/// The same over somebody else's communicator, which blocks.
void benchBorrowed(int ranks) {
  const NcclLibrary& nccl = requireNccl();
  const auto initAll = nccl.file.find<decltype(&ncclCommInitAll)>("ncclCommInitAll");
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
  nccl.check(initAll(comms.data(), ranks, nullptr), "ncclCommInitAll");
  const auto problem = onThreads(ranks, [&](int rank) {
    expectCuda(cudaSetDevice(rank), "cudaSetDevice");
    Health health;
    const auto group = NcclComm::borrow(comms[static_cast<std::size_t>(rank)], std::chrono::seconds(60), health);
    const double us = hostUs(*group);
    if (rank == 0) std::printf("host time of an exchange: %.1f us on a borrowed, blocking communicator\n", us);
  });
  expect(problem.empty(), problem);
}

void bench(NcclRank& mine) {
  const double us = hostUs(*mine.nccl);
  if (mine.rank == 0) std::printf("host time of an exchange: %.1f us\n", us);
  NcclOnlyGroup group(*mine.nccl);
  const auto stream = seqpar::makeStream();
  const std::vector<int> nodes(static_cast<std::size_t>(group.size()), 0);
  const NcclLinks links = measureNcclLinks(*mine.nccl, mine.control, nodes);
  if (mine.rank == 0) {
    std::printf("a step: %.1f us, %.1f GB/s\n%12s %12s %6s %10s %10s %10s\n", links.node.alpha * 1e6,
                1e-9 / links.node.secondsPerByte, "bytes", "algorithm", "K", "model", "calls", "graph");
  }
  for (const std::size_t heads : {4, 32, 128, 1024}) {
    NcclScanCase given;
    ScanSpec spec;
    spec.size = group.size();
    spec.heads = heads;
    spec.dk = spec.dv = 64;
    for (int position = 0; position < spec.size; ++position) given.order.push_back(position);
    given.scan = makeScanCase(spec, Numbers::Random, 1);
    DeviceBuffers buffers(given.scan, mine.rank, Outputs::Both, group.device(), 0);
    for (const auto& [algorithm, blocks] : {std::pair{seqparScanLasp2, 1},
                                            {seqparScanOneshot, 1},
                                            {seqparScanTransposed, 1},
                                            {seqparScanLasp1, 1},
                                            {seqparScanChain, 2},
                                            {seqparScanChain, 4}}) {
      const auto estimates = ncclScanEstimates(buffers.problem(), nodes, links, blocks);
      const auto choice = *std::find_if(estimates.begin(), estimates.end(), [wanted = algorithm](const auto& estimate) {
        return estimate.algorithm == wanted;
      });
      const auto work = [&] {
        ncclScan(group, buffers.problem(), given.order, nodes, scanAlgorithm(choice.algorithm), choice.blocks,
                 stream.get());
      };
      const double calls = medianUs(mine, stream.get(), work);
      const double graph = graphUs(mine, stream.get(), work);
      if (mine.rank != 0) continue;
      std::printf("%12zu %12s %6d %10.1f %10.1f %10.1f\n", spec.elements() * sizeof(float),
                  seqparScanAlgorithmName(algorithm), choice.blocks, choice.modelUs, calls, graph);
    }
  }
}

}  // namespace

int main() {
  limitSeconds(120);
  const int gpus = requireNcclRanks();
  std::printf("%s, %d ranks, DIAG fp32\n", ncclReport().c_str(), gpus);
  const std::string problem = onNcclRanks(gpus, std::chrono::seconds(60), bench);
  if (problem.empty()) benchBorrowed(gpus);
  if (!problem.empty()) std::printf("%s\n", problem.c_str());
  return problem.empty() ? 0 : 1;
}
