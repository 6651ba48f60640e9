// Times of the MATRIX scan, beside gathering all maps with NCCL and combining them, as FLA's context parallelism does.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "kernels/fifo_cuda.cuh"
#include "kernels/scan/matrix_tensor.cuh"
#include "scan/peers/backend.h"
#include "support/ranks.cuh"
#ifdef SEQPAR_NCCL
#include "device/nccl_library.h"
#endif

namespace seqpar::test {

struct BarrierView {
  std::uint32_t* flags[kMostPeers];  ///< of every rank: one word from each
  std::uint32_t* epoch;              ///< this rank's own
  int self, size;
};

/// One warp. Gives up after 10 s.
__global__ void barrierKernel(BarrierView view) {
  const int peer = static_cast<int>(threadIdx.x);
  const std::uint32_t epoch = *view.epoch + 1;
  __syncwarp();
  if (peer == 0) *view.epoch = epoch;
  if (peer >= view.size) return;
  __threadfence_system();
  CudaMemory::store(view.flags[peer] + view.self, epoch);
  const std::uint64_t begin = CudaMemory::now();
  while (CudaMemory::load(view.flags[view.self] + peer) < epoch && CudaMemory::now() - begin < 10'000'000'000) {
  }
}

constexpr int kSize = 128;

/// What a rank does with a gathered [state | transition] of every rank, for one head and panel a CTA.
__global__ void __launch_bounds__(kTensorThreads)
    combineKernel(const float* gathered, const __grid_constant__ MatrixScan scan) {
  extern __shared__ SplitPair shared[];
  const CtaGroup group;
  const PanelGroup at = scan.at(static_cast<int>(blockIdx.x));
  const std::size_t matrices = static_cast<std::size_t>(scan.heads) * scan.dk * scan.dk;
  const std::size_t states = static_cast<std::size_t>(scan.heads) * scan.dk * scan.dv;
  const int fragment = group.thread();
  float x[8] = {};
  CudaExactProduct<kSize, Matrices::Rows> product;
  for (int position = 0; position <= scan.position; ++position) {
    const float* const map = gathered + static_cast<std::size_t>(position) * (states + matrices);
    if (position == scan.position) {
      storeFragment<FastPanels>(CallerPanel<void*>(scan.prefix, scan, at.head, at.first), PanelFragment(fragment), x);
    }
    float s[8];
    loadFragment<FastPanels>(CallerPanel<const void*>(map, scan, at.head, at.first), PanelFragment(fragment), s);
    if (position > 0) {
      MatrixScan one = scan;
      one.transition = map + states;
      product.load(transitionOf(one, at.head));
      product.settle();
      const bool needsExact = group.any(splitFragment(shared, PanelFragment(fragment), x));
      product.multiply(fragment, shared, needsExact, x);
      group.sync();
    }
    for (int i = 0; i < 8; ++i) x[i] = position > 0 ? x[i] + s[i] : s[i];
  }
  storeFragment<FastPanels>(CallerPanel<void*>(scan.total, scan, at.head, at.first), PanelFragment(fragment), x);
}

/// Work of one rank on its stream.
using Enqueue = std::function<void(int rank, cudaStream_t stream)>;

class MatrixBench {
 public:
  static constexpr int kHeads = 32;
  static constexpr std::size_t kFloats = std::size_t{kHeads} * kSize * kSize;

  MatrixBench(int ranks, int channels, int gpus) : ranks_(ranks, channels, gpus, 10'000'000'000), gpus_(gpus) {
    order_.resize(static_cast<std::size_t>(ranks));
    std::iota(order_.begin(), order_.end(), 0);
    std::vector<float> numbers(2 * kFloats);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<float>(static_cast<int>(i * 2654435761U >> 16 & 0xff) - 128) / (128 * kSize);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const CurrentDevice current(ranks_.deviceOf(rank));
      Buffers& mine = buffers_.emplace_back();
      mine.map = toDevice(numbers.data(), 2 * kFloats * sizeof(float));
      mine.gathered = allocateDevice(2 * kFloats * sizeof(float) * static_cast<std::size_t>(ranks));
      mine.prefix = allocateDevice(kFloats * sizeof(float));
      mine.total = allocateDevice(kFloats * sizeof(float));
      const std::uint32_t zeros[kMostPeers] = {};
      mine.flags = toDevice(zeros, sizeof zeros);
      mine.epoch = toDevice(zeros, sizeof zeros);
    }
  }

  int size() const { return ranks_.size(); }
  int gpus() const { return gpus_; }

  void scan(seqparScanAlgorithm_t algorithm, bool initial, int rank, cudaStream_t stream) const {
    ScanProblem each = problem(rank);
    if (initial && each.first) each.initial = each.state;
    launchPeerScan(ranks_.view(rank), each, order_, scanAlgorithm(algorithm), stream);
  }

  float* map(int rank) const { return reinterpret_cast<float*>(at(rank).map.get()); }
  float* gathered(int rank) const { return reinterpret_cast<float*>(at(rank).gathered.get()); }

  void combine(int rank, cudaStream_t stream) const {
    MatrixScan scan;
    scan.prefix = at(rank).prefix.get();
    scan.total = at(rank).total.get();
    scan.heads = kHeads;
    scan.dk = scan.dv = kSize;
    scan.paired = true;
    scan.position = rank;
    scan.positions = size();
    constexpr std::size_t kBytes = pairsOf(kSize) * sizeof(SplitPair);
    combineKernel<<<scan.groups(), kTensorThreads, kBytes, stream>>>(gathered(rank), scan);
    checkCuda(cudaGetLastError(), "combineKernel");
  }

  /// Microseconds of one `work` alone on all ranks, the median of `kRuns`: a barrier and the work, less a barrier.
  double time(const Enqueue& work) {
    return timeWithBarrier(work) - timeWithBarrier([](int, cudaStream_t) {});
  }

  /// Runs `body` for every rank at once, each on a thread of its own.
  void eachRank(const std::function<void(int rank, cudaStream_t stream)>& body) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        const CurrentDevice current(ranks_.deviceOf(rank));
        body(rank, ranks_.stream(rank));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void synchronize() const { ranks_.synchronize(); }

 private:
  static constexpr int kTogether = 20, kRuns = 15;

  struct Buffers {
    DeviceMemory map, gathered, prefix, total, flags, epoch;
  };
  const Buffers& at(int rank) const { return buffers_[static_cast<std::size_t>(rank)]; }

  ScanProblem problem(int rank) const {
    ScanProblem problem;
    problem.op = seqparScanMatrix;
    problem.heads = kHeads;
    problem.dk = problem.dv = kSize;
    problem.headFlags.resize(kHeads);
    problem.state = map(rank);
    problem.transition = map(rank) + kFloats;
    problem.prefix = at(rank).prefix.get();
    problem.total = at(rank).total.get();
    problem.first = rank == 0;
    return problem;
  }

  void barrier(int rank, cudaStream_t stream) const {
    BarrierView view{};
    for (int peer = 0; peer < size(); ++peer) view.flags[peer] = reinterpret_cast<std::uint32_t*>(at(peer).flags.get());
    view.epoch = reinterpret_cast<std::uint32_t*>(at(rank).epoch.get());
    view.self = rank;
    view.size = size();
    barrierKernel<<<1, 32, 0, stream>>>(view);
    checkCuda(cudaGetLastError(), "barrierKernel");
  }

  double timeWithBarrier(const Enqueue& work) {
    struct RankRun {
      cudaGraphExec_t graph = nullptr;
      cudaEvent_t begin = nullptr, end = nullptr;
    };
    std::vector<RankRun> runs(static_cast<std::size_t>(size()));
    eachRank([&](int rank, cudaStream_t stream) {
      RankRun& mine = runs[static_cast<std::size_t>(rank)];
      checkCuda(cudaEventCreate(&mine.begin), "cudaEventCreate");
      checkCuda(cudaEventCreate(&mine.end), "cudaEventCreate");
      checkCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      for (int i = 0; i < kTogether; ++i) {
        barrier(rank, stream);
        work(rank, stream);
      }
      cudaGraph_t graph = nullptr;
      checkCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
      checkCuda(cudaGraphInstantiate(&mine.graph, graph, 0), "cudaGraphInstantiate");
      checkCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    });
    std::vector<double> times;
    for (int run = 0; run < kRuns + 2; ++run) {
      for (int rank = 0; rank < size(); ++rank) {
        const CurrentDevice current(ranks_.deviceOf(rank));
        const RankRun& mine = runs[static_cast<std::size_t>(rank)];
        barrier(rank, ranks_.stream(rank));
        checkCuda(cudaEventRecord(mine.begin, ranks_.stream(rank)), "cudaEventRecord");
        checkCuda(cudaGraphLaunch(mine.graph, ranks_.stream(rank)), "cudaGraphLaunch");
        checkCuda(cudaEventRecord(mine.end, ranks_.stream(rank)), "cudaEventRecord");
      }
      ranks_.synchronize();
      float slowest = 0;
      for (const RankRun& mine : runs) {
        float milliseconds = 0;
        checkCuda(cudaEventElapsedTime(&milliseconds, mine.begin, mine.end), "cudaEventElapsedTime");
        slowest = std::max(slowest, milliseconds);
      }
      if (run >= 2) times.push_back(slowest * 1e3 / kTogether);
    }
    for (const RankRun& mine : runs) {
      cudaGraphExecDestroy(mine.graph);
      cudaEventDestroy(mine.begin);
      cudaEventDestroy(mine.end);
    }
    std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
    return times[kRuns / 2];
  }

  DeviceRanks ranks_;
  int gpus_;
  std::vector<int> order_;
  std::vector<Buffers> buffers_;
};

#ifdef SEQPAR_NCCL
inline double timeGathering(MatrixBench& bench) {
  const NcclLibrary& nccl = requireNccl();
  const auto initAll = nccl.file.find<decltype(&ncclCommInitAll)>("ncclCommInitAll");
  const auto destroy = nccl.file.find<decltype(&ncclCommDestroy)>("ncclCommDestroy");
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(bench.size()));
  nccl.check(initAll(comms.data(), bench.size(), nullptr), "ncclCommInitAll");
  const auto gather = [&](int rank, cudaStream_t stream) {
    nccl.check(nccl.allGather(bench.map(rank), bench.gathered(rank), 2 * MatrixBench::kFloats, ncclFloat,
                              comms[static_cast<std::size_t>(rank)], stream),
               "ncclAllGather");
    bench.combine(rank, stream);
  };
  bench.eachRank(gather);  // connects
  bench.synchronize();
  const double time = bench.time(gather);
  for (const ncclComm_t comm : comms) destroy(comm);
  return time;
}
#endif

/// Prints a table, of one algorithm if it is named; the exit status.
inline int benchMatrix(int gpus, const std::string& only) {
  std::printf("MATRIX scan, %d heads of %d x %d, fp32 (%zu bytes of states); us, less a barrier\n", MatrixBench::kHeads,
              kSize, kSize, MatrixBench::kFloats * sizeof(float));
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int channels : {16, 32, 64}) {
      if ((ranks + gpus - 1) / gpus * channels > 128) continue;  // all must be resident
      MatrixBench bench(ranks, channels, gpus);
      ScanProblem shape;
      shape.dk = kSize;
      for (const ScanAlgorithm& row : scanAlgorithms()) {
        if (!matrixRowFits(row, shape, channels) || (!only.empty() && only != row.name)) continue;
        double times[2];
        for (const bool initial : {false, true}) {
          times[initial] =
              bench.time([&](int rank, cudaStream_t stream) { bench.scan(row.id, initial, rank, stream); });
        }
        std::printf("%d ranks, %d a GPU, %d CTAs: %-10s %8.2f, with an initial state %8.2f\n", ranks,
                    (ranks + gpus - 1) / gpus, channels, row.name, times[0], times[1]);
        std::fflush(stdout);
      }
      if (channels != 32) continue;
      const double combine = bench.time([&](int rank, cudaStream_t stream) { bench.combine(rank, stream); });
      std::printf("%d ranks: combining gathered maps alone %8.2f\n", ranks, combine);
#ifdef SEQPAR_NCCL
      if (ranks > 1 && ranks <= gpus) {
        std::printf("%d ranks: ncclAllGather and combining %8.2f\n", ranks, timeGathering(bench));
      }
#endif
    }
  }
  return 0;
}

}  // namespace seqpar::test
