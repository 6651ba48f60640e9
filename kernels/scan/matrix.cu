// Kernels of All-Scan with a matrix per head (MATRIX).
//
// Work      a CTA has some groups of panels of 16 columns of heads' states (ChannelShares, matrix_plan.h)
// Roles     matrixTeams: teams of 2 Rows threads take halves of panels in turn, 512 threads; others: 256 threads alike.
//           kRegisters registers per thread, except in teams
// Tiles     16 rows x 16 columns per warp in TF32 with remainders (matrix_tensor.h)
// Smem      matrixChain: 2 group panels; matrixTeams: MatrixTeams::Shared; matrixMaps: MapMemory
// Barriers  __syncthreads(); named, kFirstTeam + team: of a team
// Overlap   none between kernels; CTAs of all ranks must run concurrently, as in kernel.cuh
#include <algorithm>

#include "kernels/fifo_cuda.cuh"
#include "kernels/launch.h"
#include "kernels/scan/launch.h"
#include "kernels/scan/matrix_chain.h"
#include "kernels/scan/matrix_doubling.h"
#include "kernels/scan/matrix_fits.h"
#include "kernels/scan/matrix_gather.h"
#include "kernels/scan/matrix_gather_large.h"
#include "kernels/scan/matrix_teams.h"
#include "kernels/scan/matrix_tensor.cuh"
#include "kernels/scan/matrix_transposed.h"

namespace seqpar {
namespace {

/// Shared memory available to a CTA on every GPU with the tensor core formats used here, without the runtime's reserve.
constexpr std::size_t kSharedBytes = 99 << 10;

/// Registers that a thread needs to avoid spilling; leaves some of the SM's registers to other kernels.
constexpr int kRegisters = 192;

using AnyProduct = CudaTensorProduct;

SEQPAR_DEVICE void runChain(const PeerView& view, const MatrixScan& scan, const ChannelShares& shares,
                            SplitPair* pairs) {
  const int channel = static_cast<int>(blockIdx.x);
  const CtaGroup group;
  MatrixChain<CudaMemory, CtaGroup, AnyProduct> chain(view, scan, channel, group, pairs);
  chain.run(shares.of(channel));
}

__global__ void __maxnreg__(kRegisters)
    matrixChain(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan, ChannelShares shares) {
  extern __shared__ SplitPair shared[];
  runChain(view, scan, shares, shared);
}

/// For matrices so large that shared memory cannot hold two panels: `scratch` holds the panels of all channels. A
/// separate kernel, because generic addresses are slow.
__global__ void __maxnreg__(kRegisters)
    matrixChainOfLarge(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan,
                       ChannelShares shares, SplitPair* scratch) {
  runChain(view, scan, shares, scratch + blockIdx.x * (2 * scan.group * pairsOf(scan.dk)));
}

/// Threads of all teams of a CTA; they fill an SM.
constexpr int kTeamThreads = 512;

/// Named barriers; __syncthreads() has 0.
enum TeamBarrier { kFirstTeam = 1 };  ///< kFirstTeam + number: of a team

template <int Rows>
class CudaTeam {
 public:
  static constexpr int kThreads = 2 * Rows;
  static constexpr int kTeams = kTeamThreads / kThreads;
  static_assert(kFirstTeam + kTeams <= ptx::kNamedBarriers);

  static SEQPAR_DEVICE int thread() { return static_cast<int>(threadIdx.x % kThreads); }
  static SEQPAR_DEVICE int number() { return static_cast<int>(threadIdx.x / kThreads); }
  static SEQPAR_DEVICE bool any(bool mine) { return ptx::barrierRedOr<kThreads>(kFirstTeam + number(), mine); }
  static SEQPAR_DEVICE bool anyOfChannel(bool mine) { return __syncthreads_or(mine ? 1 : 0) != 0; }
};

template <int Rows, bool reverse>
using CudaTeams =
    MatrixTeams<Rows, CudaMemory, CudaTeam<Rows>, CudaExactProduct<Rows, reverse ? Matrices::Columns : Matrices::Rows>>;

/// Heads of the usual sizes have short kernels: a kernel that runs once is bound by its instruction fetches.
template <int Rows, bool reverse>
__global__ void __launch_bounds__(kTeamThreads)
    matrixTeams(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan, ChannelShares shares) {
  extern __shared__ SplitPair memory[];
  auto& shared = *reinterpret_cast<typename CudaTeams<Rows, reverse>::Shared*>(memory);
  const CudaTeam<Rows> team;
  const int channel = static_cast<int>(blockIdx.x);
  CudaTeams<Rows, reverse> teams(view, scan, channel, team, shared, reverse);
  teams.run(shares.of(channel));
}

int channelsOf(const PeerView& view, const MatrixScan& scan) {
  return std::min({view.channels, kMostMatrixChannels, scan.groups()});
}

bool hasTeams(const MatrixScan& scan) {
  return areFast(scan) && (scan.dk == 128 || scan.dk == 64);
}

cudaError_t launchTeams(const PeerView& view, const MatrixScan& scan, cudaStream_t stream) {
  const auto launch = [&](auto kernel, std::size_t bytes) {
    const cudaError_t result = allowSharedMemory(reinterpret_cast<const void*>(kernel), bytes);
    if (result != cudaSuccess) return result;
    const int channels = channelsOf(view, scan);
    return launchKernel(kernel, {channels, kTeamThreads, bytes, stream}, view, scan,
                        ChannelShares(scan.groups(), channels));
  };
  if (scan.dk == 128) {
    return launch(scan.reverse ? matrixTeams<128, true> : matrixTeams<128, false>,
                  sizeof(CudaTeams<128, false>::Shared));
  }
  return launch(scan.reverse ? matrixTeams<64, true> : matrixTeams<64, false>, sizeof(CudaTeams<64, false>::Shared));
}

cudaError_t launchPanels(const PeerView& view, MatrixScan scan, bool pipelined, cudaStream_t stream) {
  if (pipelined && hasTeams(scan)) return launchTeams(view, scan, stream);
  const std::size_t panel = 2 * pairsOf(scan.dk) * sizeof(SplitPair);
  if (!pipelined) scan.group = static_cast<int>(std::clamp<std::size_t>(kSharedBytes / panel, 1, scan.panels()));
  const std::size_t bytes = panel * scan.group;
  const int channels = channelsOf(view, scan);
  const ChannelShares shares(scan.groups(), channels);
  if (bytes <= kSharedBytes) {
    const cudaError_t result = allowSharedMemory(reinterpret_cast<const void*>(matrixChain), kSharedBytes);
    if (result != cudaSuccess) return result;
    return launchKernel(matrixChain, {channels, kTensorThreads, bytes, stream}, view, scan, shares);
  }
  void* scratch = nullptr;
  const cudaError_t result = cudaMallocAsync(&scratch, channels * bytes, stream);
  if (result != cudaSuccess) return result;
  const cudaError_t launched = launchKernel(matrixChainOfLarge, {channels, kTensorThreads, 0, stream}, view, scan,
                                            shares, static_cast<SplitPair*>(scratch));
  const cudaError_t freed = cudaFreeAsync(scratch, stream);
  return launched != cudaSuccess ? launched : freed;
}

/// The programs that exchange maps.
enum class MapProgram { Oneshot, Lasp2, Transposed, Doubling };

constexpr int matricesOf(MapProgram program) {
  return program == MapProgram::Doubling ? 2 : 1;
}

using AnyGather = MatrixGather<CudaMemory, CtaGroup, AnyProduct>;
using AnyTransposed = MatrixTransposed<CudaMemory, CtaGroup, AnyProduct>;
using AnyDoubling = MatrixDoubling<CudaMemory, CtaGroup, AnyProduct>;

__global__ void __maxnreg__(kRegisters)
    matrixMaps(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan, MapProgram program) {
  extern __shared__ SplitPair shared[];
  __shared__ CursorPositions out, in;
  const CtaGroup group;
  float* const matrices = reinterpret_cast<float*>(shared + (scan.group + 2) * pairsOf(scan.dk));
  const MapMemory memory{shared, {matrices, matrices + matrixBytes(scan.dk) / sizeof(float)}, &out, &in};
  const int number = static_cast<int>(blockIdx.x);
  const int ctas = static_cast<int>(gridDim.x);
  if (program == MapProgram::Doubling) {
    AnyDoubling(view, scan, number, ctas, group, memory).run();
  } else if (program == MapProgram::Transposed) {
    AnyTransposed(view, scan, number, ctas, group, memory).run();
  } else {
    AnyGather(view, scan, number, ctas, program == MapProgram::Lasp2, group, memory).run();
  }
}

cudaError_t launchMaps(const PeerView& view, MatrixScan scan, MapProgram program, void* stream) {
  const int most = mostMapPanels(matricesOf(program), static_cast<std::size_t>(scan.dk), view.channels);
  const int cursors = std::min(mostCursors(view.channels), kMostMatrixChannels);
  // A group sends its matrix once: use large groups, but enough of them for all CTAs.
  scan.group = std::clamp(scan.heads * scan.panels() / cursors, 1, std::min(most, scan.panels()));
  const std::size_t bytes = mapBytes(scan.dk, scan.group, matricesOf(program));
  const cudaError_t result = allowSharedMemory(reinterpret_cast<const void*>(matrixMaps), kMapBytes);
  if (result != cudaSuccess) return result;
  return launchKernel(matrixMaps,
                      {std::min(cursors, scan.groups()), kTensorThreads, bytes, static_cast<cudaStream_t>(stream)},
                      view, scan, program);
}

/// For matrices that exceed shared memory: `scratch` holds the panels of pairs of all CTAs, then their gathered maps.
__global__ void __maxnreg__(kRegisters)
    matrixGatherOfLarge(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan,
                        SplitPair* scratch) {
  __shared__ CursorPositions out, in;
  const CtaGroup group;
  const int number = static_cast<int>(blockIdx.x);
  const int ctas = static_cast<int>(gridDim.x);
  const std::size_t pairs = static_cast<std::size_t>(scan.group + 2) * pairsOf(scan.dk);
  GatheredMaps maps{reinterpret_cast<float*>(scratch + ctas * pairs), scan.dk, scan.group};
  maps.numbers += number * scan.position * maps.mapNumbers();
  const MapMemory memory{scratch + number * pairs, {nullptr, nullptr}, &out, &in};
  MatrixGatherLarge<CudaMemory, CtaGroup, AnyProduct>(view, scan, number, ctas, group, memory, maps).run();
}

cudaError_t launchGatherOfLarge(const PeerView& view, MatrixScan scan, void* stream) {
  constexpr int kMostPanels = 32;  // MatrixMaps has a bit for each
  const int cursors = std::min(mostCursors(view.channels), kMostMatrixChannels);
  scan.group = std::clamp(scan.heads * scan.panels() / cursors, 1, std::min(kMostPanels, scan.panels()));
  const int ctas = std::min(cursors, scan.groups());
  const std::size_t pairs = static_cast<std::size_t>(scan.group + 2) * pairsOf(scan.dk);
  const std::size_t numbers = scan.position * GatheredMaps{nullptr, scan.dk, scan.group}.mapNumbers();
  const auto on = static_cast<cudaStream_t>(stream);
  void* scratch = nullptr;
  const cudaError_t result =
      cudaMallocAsync(&scratch, ctas * (pairs * sizeof(SplitPair) + numbers * sizeof(float)), on);
  if (result != cudaSuccess) return result;
  const cudaError_t launched =
      launchKernel(matrixGatherOfLarge, {ctas, kTensorThreads, 0, on}, view, scan, static_cast<SplitPair*>(scratch));
  const cudaError_t freed = cudaFreeAsync(scratch, on);
  return launched != cudaSuccess ? launched : freed;
}

}  // namespace

int launchMatrixChain(const PeerView& view, const MatrixScan& scan, void* stream) {
  return launchPanels(view, scan, true, static_cast<cudaStream_t>(stream));
}
int launchMatrixLasp1(const PeerView& view, const MatrixScan& scan, void* stream) {
  return launchPanels(view, scan, false, static_cast<cudaStream_t>(stream));
}
int launchMatrixOneshot(const PeerView& view, const MatrixScan& scan, void* stream) {
  return launchMaps(view, scan, MapProgram::Oneshot, stream);
}
int launchMatrixLasp2(const PeerView& view, const MatrixScan& scan, void* stream) {
  if (mostMapPanels(1, static_cast<std::size_t>(scan.dk), view.channels) == 0) {
    return launchGatherOfLarge(view, scan, stream);
  }
  return launchMaps(view, scan, MapProgram::Lasp2, stream);
}
int launchMatrixTransposed(const PeerView& view, const MatrixScan& scan, void* stream) {
  return launchMaps(view, scan, MapProgram::Transposed, stream);
}
int launchMatrixDoubling(const PeerView& view, const MatrixScan& scan, void* stream) {
  return launchMaps(view, scan, MapProgram::Doubling, stream);
}

}  // namespace seqpar
