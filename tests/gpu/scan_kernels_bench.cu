// Each figure is the median of graph launches, of (a barrier of all ranks and a scan) less (the barrier alone), so that
// calls do not overlap. The slowest rank counts.
#include "scan_kernels_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "gpu_peers.h"
#include "kernels/fifo_cuda.cuh"
#include "scan/peers/backend.h"
#include "scan/peers/probe.h"
#include "scan_rows.h"

namespace seqpar::test {
namespace {

constexpr int kCalls = 20;   // in a graph
constexpr int kGraphs = 15;  // launches of each

/// A word of every rank for every rank.
struct Flags {
  std::uint32_t* of[kMostPeers];
};

__global__ void barrierKernel(Flags flags, int self, int size) {
  __shared__ std::uint32_t round;
  if (threadIdx.x == 0) round = ++flags.of[self][size];
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer >= size) return;
  CudaMemory::store(&flags.of[peer][self], round);
  const std::uint64_t start = CudaMemory::now();
  std::uint32_t looks = 0;  // reading the clock takes longer than a look
  while (static_cast<std::int32_t>(CudaMemory::load(&flags.of[self][peer]) - round) < 0) {
    if (++looks % 4096 == 0 && CudaMemory::now() - start > 3000000000U) return;
  }
}

class Bench {
 public:
  Bench(int size, int gpus, int channels, std::size_t most) : peers_(size, channels, gpus), flags_{} {
    for (int rank = 0; rank < size; ++rank) {
      const CurrentDevice current(peers_.deviceOf(rank));
      words_.push_back(allocateDevice(sizeof(std::uint32_t) * (kMostPeers + 1)));
      checkCuda(cudaMemset(words_.back().get(), 0, sizeof(std::uint32_t) * (kMostPeers + 1)), "cudaMemset");
      flags_.of[rank] = reinterpret_cast<std::uint32_t*>(words_.back().get());
      for (int i = 0; i < 4; ++i) {
        buffers_.push_back(allocateDevice(most));
        checkCuda(cudaMemset(buffers_.back().get(), 0, most), "cudaMemset");
      }
      checkCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
  }

  /// Brings the GPUs from their rest to their usual clocks.
  void warm() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    while (std::chrono::steady_clock::now() < end) time(seqparScanChain, std::size_t{4} << 20);
  }

  /// us of a call.
  double time(seqparScanAlgorithm_t algorithm, std::size_t bytes) {
    std::vector<int> order;
    for (int rank = 0; rank < peers_.size(); ++rank) order.push_back(rank);
    const double both = graphTime([&](int rank) {
      barrier(rank);
      launchPeerScan(peers_.view(rank), problem(rank, bytes), order, scanAlgorithm(algorithm), peers_.stream(rank));
    });
    return both - graphTime([&](int rank) { barrier(rank); });
  }

  DeviceLink link() {
    std::vector<DeviceProbe> probes(static_cast<std::size_t>(peers_.size()));
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (int rank = 0; rank < peers_.size(); ++rank) {
        const CurrentDevice current(peers_.deviceOf(rank));
        probes[static_cast<std::size_t>(rank)].start(peers_.view(rank), peers_.stream(rank));
      }
      peers_.synchronize();
    }
    return probes.front().result();
  }

 private:
  void barrier(int rank) { barrierKernel<<<1, 32, 0, peers_.stream(rank)>>>(flags_, rank, peers_.size()); }

  ScanProblem problem(int rank, std::size_t bytes) const {
    const auto buffer = [&](int i) { return buffers_[static_cast<std::size_t>(rank * 4 + i)].get(); };
    ScanProblem problem;
    problem.heads = bytes / (sizeof(float) * 64 * 128);
    problem.dk = 64;
    problem.dv = 128;
    if (problem.heads == 0) {
      problem.heads = 1;
      problem.dk = bytes / (sizeof(float) * 128);
    }
    problem.headFlags.assign(problem.heads, 0);
    problem.first = rank == 0;
    problem.state = buffer(0);
    problem.transition = reinterpret_cast<const float*>(buffer(1));
    problem.prefix = buffer(2);
    problem.total = buffer(3);
    return problem;
  }

  /// us of one of kCalls in a graph.
  double graphTime(const std::function<void(int)>& call) {
    struct DestroyGraph {
      void operator()(cudaGraphExec_t graph) const noexcept { cudaGraphExecDestroy(graph); }
    };
    const int size = peers_.size();
    std::vector<std::unique_ptr<CUgraphExec_st, DestroyGraph>> graphs;
    std::vector<EventHandle> starts, ends;
    for (int rank = 0; rank < size; ++rank) {
      const CurrentDevice current(peers_.deviceOf(rank));
      checkCuda(cudaStreamBeginCapture(peers_.stream(rank), cudaStreamCaptureModeThreadLocal), "begin capture");
      for (int i = 0; i < kCalls; ++i) call(rank);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      checkCuda(cudaStreamEndCapture(peers_.stream(rank), &graph), "end capture");
      checkCuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
      cudaGraphDestroy(graph);
      graphs.emplace_back(exec);
      for (auto* events : {&starts, &ends}) {
        cudaEvent_t event = nullptr;
        checkCuda(cudaEventCreate(&event), "cudaEventCreate");
        events->emplace_back(event);
      }
    }
    std::vector<double> times;
    for (int repeat = 0; repeat < kGraphs; ++repeat) {
      for (int rank = 0; rank < size; ++rank) {
        const CurrentDevice current(peers_.deviceOf(rank));
        barrier(rank);
        const auto i = static_cast<std::size_t>(rank);
        checkCuda(cudaEventRecord(starts[i].get(), peers_.stream(rank)), "cudaEventRecord");
        checkCuda(cudaGraphLaunch(graphs[i].get(), peers_.stream(rank)), "cudaGraphLaunch");
        checkCuda(cudaEventRecord(ends[i].get(), peers_.stream(rank)), "cudaEventRecord");
      }
      peers_.synchronize();
      float slowest = 0;
      for (std::size_t i = 0; i < graphs.size(); ++i) {
        float each = 0;
        checkCuda(cudaEventElapsedTime(&each, starts[i].get(), ends[i].get()), "cudaEventElapsedTime");
        slowest = std::max(slowest, each);
      }
      times.push_back(slowest * 1000.0 / kCalls);
    }
    for (int rank = 0; rank < size; ++rank) {
      if (peers_.timedOut(rank) != 0) fail(seqparRemoteError, "rank ", rank, " gave up");
    }
    std::nth_element(times.begin(), times.begin() + kGraphs / 2, times.end());
    return times[kGraphs / 2];
  }

  GpuPeers peers_;
  Flags flags_;
  std::vector<DeviceMemory> words_, buffers_;
};

}  // namespace

void benchScanKernels(int gpus) {
  const auto algorithms = test::peerAlgorithms();
  const char* const channelsText = std::getenv("BENCH_LANES");
  for (const int size : {1, 2, 4, 8}) {
    const int fit = 256 * gpus / size;  // CTAs of all ranks must run at once
    const int channels = std::min(channelsText == nullptr ? 32 : std::atoi(channelsText), fit);
    Bench bench(size, gpus, channels, std::size_t{64} << 20);
    bench.warm();
    const DeviceLink link = bench.link();
    const double alpha = link.alpha * 1e6, rate = link.bytesPerSecond;
    std::printf("%d ranks on %d GPUs (%d a GPU), %d channels: alpha %.2f us, B %.0f GB/s\n", size, std::min(gpus, size),
                (size + gpus - 1) / gpus, channels, alpha, rate * 1e-9);
    std::printf("%8s", "KB");
    for (const auto algorithm : algorithms) std::printf("%12s", seqparScanAlgorithmName(algorithm));
    std::printf("%14s%12s   (us)\n", "m/B+(P-1)a", "m/B+a");
    for (std::size_t bytes = 64 << 10; bytes <= std::size_t{64} << 20; bytes *= bytes >= (4 << 20) ? 4 : 2) {
      std::printf("%8zu", bytes >> 10);
      for (const auto algorithm : algorithms) std::printf("%12.2f", bench.time(algorithm, bytes));
      const double stream = static_cast<double>(bytes) / rate * 1e6;
      std::printf("%14.2f%12.2f\n", stream + (size - 1) * alpha, stream + alpha);
      std::fflush(stdout);
    }
  }
}

}  // namespace seqpar::test
