#include "scan/device_matrix.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "channel_cuda.h"
#include "device/launch.h"
#include "scan/device_matrix_task.h"
#include "scan/matrix_chain.h"
#include "scan/matrix_doubling.h"
#include "scan/matrix_gather.h"
#include "scan/matrix_teams.h"
#include "scan/matrix_tensor.cuh"
#include "scan/matrix_transposed.h"

namespace seqpar {
namespace {

/// Shared memory that every GPU with the tensor core formats used here grants a CTA, less what the runtime keeps.
constexpr std::size_t kSharedBytes = 99 << 10;

/// What a thread needs without spilling; other kernels still find some beside a CTA.
constexpr int kRegisters = 192;

using AnyProduct = CudaTensorProduct;

__device__ __forceinline__ void runChain(const PeerView& view, const MatrixScan& scan, const LaneShares& shares,
                                         SplitPair* pairs) {
  const int lane = static_cast<int>(blockIdx.x);
  const CtaGroup group;
  MatrixChain<CudaMemory, CtaGroup, AnyProduct> chain(view, scan, lane, group, pairs);
  chain.run(shares.of(lane));
}

__global__ void __maxnreg__(kRegisters)
    matrixChain(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan, LaneShares shares) {
  extern __shared__ SplitPair shared[];
  runChain(view, scan, shares, shared);
}

/// For matrices so large that shared memory holds no two panels: `scratch` has them for all lanes. A kernel of its own,
/// since addresses that may be of either memory are slow.
__global__ void __maxnreg__(kRegisters)
    matrixChainOfLarge(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan,
                       LaneShares shares, SplitPair* scratch) {
  runChain(view, scan, shares, scratch + blockIdx.x * (2 * scan.group * pairsOf(scan.dk)));
}

/// Threads of all teams of a CTA, which fill a multiprocessor.
constexpr int kTeamThreads = 512;

template <int Rows>
class CudaTeam {
 public:
  static constexpr int kThreads = 2 * Rows;
  static constexpr int kTeams = kTeamThreads / kThreads;

  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x % kThreads); }
  static __device__ __forceinline__ int number() { return static_cast<int>(threadIdx.x / kThreads); }
  static __device__ __forceinline__ bool any(bool mine) {
    std::uint32_t result;
    asm volatile(
        "{\n"
        ".reg .pred mine, all;\n"
        "setp.ne.u32 mine, %1, 0;\n"
        "barrier.cta.red.or.pred all, %2, %3, mine;\n"
        "selp.u32 %0, 1, 0, all;\n"
        "}"
        : "=r"(result)
        : "r"(mine ? 1U : 0U), "r"(1 + number()), "n"(kThreads)
        : "memory");
    return result != 0;
  }
  static __device__ __forceinline__ bool anyOfLane(bool mine) { return __syncthreads_or(mine ? 1 : 0) != 0; }
};

template <int Rows, bool reverse>
using CudaTeams =
    MatrixTeams<Rows, CudaMemory, CudaTeam<Rows>, CudaExactProduct<Rows, reverse ? Matrices::Columns : Matrices::Rows>>;

/// Heads of the usual sizes have kernels that are short: a kernel that runs once is as fast as its instructions come.
template <int Rows, bool reverse>
__global__ void __launch_bounds__(kTeamThreads)
    matrixTeams(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan, LaneShares shares) {
  extern __shared__ SplitPair memory[];
  auto& shared = *reinterpret_cast<typename CudaTeams<Rows, reverse>::Shared*>(memory);
  const CudaTeam<Rows> team;
  const int lane = static_cast<int>(blockIdx.x);
  CudaTeams<Rows, reverse> teams(view, scan, lane, team, shared, reverse);
  teams.run(shares.of(lane));
}

int lanesOf(const PeerView& view, const MatrixScan& scan) {
  return std::min({view.lanes, kMostMatrixLanes, scan.groups()});
}

/// False: there is no kernel for the shape.
bool launchTeams(const PeerView& view, const MatrixScan& scan, cudaStream_t stream) {
  if (!arePlain(scan) || (scan.dk != 128 && scan.dk != 64)) return false;
  const auto launch = [&](auto kernel, std::size_t bytes) {
    allowSharedMemory(reinterpret_cast<const void*>(kernel), bytes);
    const int lanes = lanesOf(view, scan);
    launchKernel("matrixTeams", kernel, {lanes, kTeamThreads, bytes, stream}, view, scan,
                 LaneShares(scan.groups(), lanes));
  };
  if (scan.dk == 128) {
    launch(scan.reverse ? matrixTeams<128, true> : matrixTeams<128, false>, sizeof(CudaTeams<128, false>::Shared));
  } else {
    launch(scan.reverse ? matrixTeams<64, true> : matrixTeams<64, false>, sizeof(CudaTeams<64, false>::Shared));
  }
  return true;
}

void launchChain(const PeerView& view, MatrixScan scan, bool pipelined, cudaStream_t stream) {
  if (pipelined && launchTeams(view, scan, stream)) return;
  const std::size_t panel = 2 * pairsOf(scan.dk) * sizeof(SplitPair);
  if (!pipelined) scan.group = static_cast<int>(std::clamp<std::size_t>(kSharedBytes / panel, 1, scan.panels()));
  const std::size_t bytes = panel * scan.group;
  const int lanes = lanesOf(view, scan);
  const LaneShares shares(scan.groups(), lanes);
  if (bytes <= kSharedBytes) {
    allowSharedMemory(reinterpret_cast<const void*>(matrixChain), kSharedBytes);
    return launchKernel("matrixChain", matrixChain, {lanes, kTensorThreads, bytes, stream}, view, scan, shares);
  }
  void* scratch = nullptr;
  checkCuda(cudaMallocAsync(&scratch, lanes * bytes, stream), "cudaMallocAsync");
  try {
    launchKernel("matrixChainOfLarge", matrixChainOfLarge, {lanes, kTensorThreads, 0, stream}, view, scan, shares,
                 static_cast<SplitPair*>(scratch));
  } catch (...) {
    noteCuda(cudaFreeAsync(scratch, stream), "cudaFreeAsync");
    throw;
  }
  checkCuda(cudaFreeAsync(scratch, stream), "cudaFreeAsync");
}

/// What the algorithms that send maps have in shared memory. The largest amount that a CTA of this architecture gets,
/// less what is static.
constexpr std::size_t kMapBytes = 220 << 10;

SEQPAR_BOTH constexpr std::size_t matrixBytes(int dk) {
  return static_cast<std::size_t>(dk) * matrixStride(dk) * sizeof(float);
}
constexpr std::size_t mapBytes(int dk, int panels, int matrices) {
  return static_cast<std::size_t>(panels + 2) * pairsOf(dk) * sizeof(SplitPair) + matrices * matrixBytes(dk);
}
constexpr int matricesOf(int algorithm) {
  return algorithm == seqparScanDoubling ? 2 : 1;
}

/// The most panels of a group that an algorithm can work on where there are so many lanes; 0: it cannot do the shape.
int mostMapPanels(int algorithm, std::size_t dk, int lanes) {
  if (dk > 128) return 0;  // a matrix must fit registers, and shared memory
  const int rows = static_cast<int>(dk);
  int panels = 0;
  while (panels < 32 && mapBytes(rows, panels + 1, matricesOf(algorithm)) <= kMapBytes &&
         mapLines(rows, panels + 1, portWays(lanes)) <= kSureLines) {
    ++panels;
  }
  return panels;
}

using AnyGather = MatrixGather<CudaMemory, CtaGroup, AnyProduct>;
using AnyTransposed = MatrixTransposed<CudaMemory, CtaGroup, AnyProduct>;
using AnyDoubling = MatrixDoubling<CudaMemory, CtaGroup, AnyProduct>;

__global__ void __maxnreg__(kRegisters)
    matrixMaps(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan, int algorithm) {
  extern __shared__ SplitPair shared[];
  __shared__ PortPositions out, in;
  const CtaGroup group;
  float* const matrices = reinterpret_cast<float*>(shared + (scan.group + 2) * pairsOf(scan.dk));
  const MapMemory memory{shared, {matrices, matrices + matrixBytes(scan.dk) / sizeof(float)}, &out, &in};
  const int number = static_cast<int>(blockIdx.x);
  const int ctas = static_cast<int>(gridDim.x);
  if (algorithm == seqparScanDoubling) {
    AnyDoubling(view, scan, number, ctas, group, memory).run();
  } else if (algorithm == seqparScanTransposed) {
    AnyTransposed(view, scan, number, ctas, group, memory).run();
  } else {
    AnyGather(view, scan, number, ctas, algorithm == seqparScanLasp2, group, memory).run();
  }
}

void launchMaps(const PeerView& view, MatrixScan scan, int algorithm, cudaStream_t stream) {
  if (algorithm == seqparScanHier) algorithm = seqparScanTransposed;  // all peers are of one node
  const int most = mostMapPanels(algorithm, static_cast<std::size_t>(scan.dk), view.lanes);
  const int ports = std::min(mostPorts(view.lanes), kMostMatrixLanes);
  // A matrix is sent once a group: large groups, but enough of them for all CTAs.
  scan.group = std::clamp(scan.heads * scan.panels() / ports, 1, std::min(most, scan.panels()));
  const std::size_t bytes = mapBytes(scan.dk, scan.group, matricesOf(algorithm));
  allowSharedMemory(reinterpret_cast<const void*>(matrixMaps), kMapBytes);
  launchKernel("matrixMaps", matrixMaps, {std::min(ports, scan.groups()), kTensorThreads, bytes, stream}, view, scan,
               algorithm);
}

// What the headers and the error text say.
static_assert(linesOf(752, seqparFloat32) <= int{kSureLines} && linesOf(753, seqparFloat32) > int{kSureLines});
static_assert(linesOf(1520, seqparFloat16) <= int{kSureLines} && linesOf(1521, seqparFloat16) > int{kSureLines});
static_assert(mapLines(128, 1, 2) <= kSureLines);
static_assert(mapLines(80, 1, 1) <= kSureLines && mapLines(81, 1, 1) > kSureLines);

bool isChain(int algorithm) {
  return algorithm == seqparScanChain || algorithm == seqparScanLasp1;
}

}  // namespace

bool deviceMatrixFits(seqparScanAlgorithm_t algorithm, const ScanProblem& problem, int lanes) {
  if (!isChain(algorithm)) return mostMapPanels(algorithm, problem.dk, lanes) > 0;
  return problem.dk <= kSureLines && linesOf(static_cast<int>(problem.dk), problem.wireType) <= int{kSureLines};
}

void launchDeviceMatrixScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                            const seqparScanEstimate_t& choice, DeviceStream stream) {
  const auto algorithm = static_cast<seqparScanAlgorithm_t>(choice.algorithm);
  if (order.size() > 1 && !deviceMatrixFits(algorithm, problem, view.lanes)) {
    fail(seqparInvalidUsage, "a MATRIX scan of dk ", problem.dk, " by ", seqparScanAlgorithmName(algorithm),
         " on GPUs with config.ctas ", view.lanes, ", expected dk up to 752 (1520 in 16 bits on the wire) by chain or",
         " lasp1, up to 128 by others with 2 CTAs, up to 80 with one");
  }
  const auto cudaStream = static_cast<cudaStream_t>(stream);
  for (const MatrixScan& scan : makeMatrixScans(view, problem, order)) {
    if (order.size() == 1 || isChain(algorithm)) {
      launchChain(view, scan, algorithm != seqparScanLasp1, cudaStream);
    } else {
      launchMaps(view, scan, algorithm, cudaStream);
    }
  }
}

}  // namespace seqpar
