#include "scan/device_matrix.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "channel_cuda.h"
#include "device/cuda.h"
#include "scan/device_matrix_task.h"
#include "scan/matrix_chain.h"
#include "scan/matrix_doubling.h"
#include "scan/matrix_gather.h"
#include "scan/matrix_tensor.cuh"
#include "scan/matrix_transposed.h"

namespace seqpar {
namespace {

/// Shared memory that every GPU with the tensor core formats used here grants a CTA, less what the runtime keeps.
constexpr std::size_t kSharedBytes = 99 << 10;

/// What a thread needs without spilling; other kernels still find some beside a CTA.
constexpr int kRegisters = 192;

/// Heads of the usual sizes have kernels that are half as long: a kernel that runs once is as fast as its instructions
/// come.
using AnyProduct = CudaTensorProduct<128, false>;

template <class Shape, class Product>
__device__ __forceinline__ void runChain(const PeerView& view, const MatrixScan& scan, SplitNumber* pairs) {
  const int lane = static_cast<int>(blockIdx.x);
  const CtaGroup group;
  MatrixChain<Shape, CudaMemory, CtaGroup, Product> chain(view, scan, lane, group, pairs);
  chain.run(partOf({0, scan.groups()}, lane, static_cast<int>(gridDim.x)));
}

template <class Shape, class Product>
__global__ void __maxnreg__(kRegisters)
    matrixChain(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan) {
  extern __shared__ SplitNumber shared[];
  runChain<Shape, Product>(view, scan, shared);
}

/// For matrices so large that shared memory holds no two panels: `scratch` has them for all lanes. A kernel of its own,
/// since addresses that may be of either memory are slow.
__global__ void __maxnreg__(kRegisters)
    matrixChainOfLarge(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan,
                       SplitNumber* scratch) {
  runChain<AnyPanels, AnyProduct>(view, scan, scratch + blockIdx.x * (2 * scan.group * pairsOf(scan.dk)));
}

using Kernel = void (*)(PeerView, MatrixScan);

Kernel kernelFor(const MatrixScan& scan) {
  if (!arePlain(scan)) return matrixChain<AnyPanels, AnyProduct>;
  if (scan.dk == 128) return matrixChain<PlainPanels, CudaTensorProduct<128, true>>;
  if (scan.dk == 64) return matrixChain<PlainPanels, CudaTensorProduct<64, true>>;
  return matrixChain<AnyPanels, AnyProduct>;
}

void launchChain(const PeerView& view, MatrixScan scan, bool pipelined, cudaStream_t stream) {
  const std::size_t panel = 2 * pairsOf(scan.dk) * sizeof(SplitNumber);
  if (!pipelined) scan.group = static_cast<int>(std::clamp<std::size_t>(kSharedBytes / panel, 1, scan.panels()));
  const std::size_t bytes = panel * scan.group;
  const int lanes = std::min(view.lanes, scan.groups());
  if (bytes <= kSharedBytes) {
    const auto kernel = kernelFor(scan);
    checkCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
              "cudaFuncSetAttribute");
    kernel<<<lanes, kTensorThreads, bytes, stream>>>(view, scan);
    checkCuda(cudaGetLastError(), "matrixChain");
    return;
  }
  void* scratch = nullptr;
  checkCuda(cudaMallocAsync(&scratch, lanes * bytes, stream), "cudaMallocAsync");
  matrixChainOfLarge<<<lanes, kTensorThreads, 0, stream>>>(view, scan, static_cast<SplitNumber*>(scratch));
  const cudaError_t launched = cudaGetLastError();
  checkCuda(cudaFreeAsync(scratch, stream), "cudaFreeAsync");
  checkCuda(launched, "matrixChainOfLarge");
}

/// What the algorithms that send maps have in shared memory. The largest amount that a CTA of this architecture gets,
/// less what is static.
constexpr std::size_t kMapBytes = 220 << 10;

SEQPAR_BOTH constexpr std::size_t matrixBytes(int dk) {
  return static_cast<std::size_t>(dk) * matrixStride(dk) * sizeof(float);
}
constexpr std::size_t mapBytes(int dk, int panels, int matrices) {
  return static_cast<std::size_t>(panels + 2) * pairsOf(dk) * sizeof(SplitNumber) + matrices * matrixBytes(dk);
}
constexpr int matricesOf(int algorithm) {
  return algorithm == seqparScanDoubling ? 2 : 1;
}

/// The most panels of a group that an algorithm can work on; 0: it cannot do the shape.
int mostMapPanels(int algorithm, std::size_t dk, int wireType) {
  if (dk > 128) return 0;  // a matrix must fit registers, and shared memory
  const int rows = static_cast<int>(dk);
  int panels = 0;
  while (panels < 32 && mapBytes(rows, panels + 1, matricesOf(algorithm)) <= kMapBytes &&
         mapLines(rows, wireType, panels + 1) <= kMostMapLines) {
    ++panels;
  }
  return panels;
}

using AnyGather = MatrixGather<CudaMemory, CtaGroup, AnyProduct>;
using AnyTransposed = MatrixTransposed<CudaMemory, CtaGroup, AnyProduct>;
using AnyDoubling = MatrixDoubling<CudaMemory, CtaGroup, AnyProduct>;

__global__ void __maxnreg__(kRegisters)
    matrixMaps(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan, int algorithm) {
  extern __shared__ SplitNumber shared[];
  __shared__ PortPositions out, in;
  const CtaGroup group;
  float* const matrices = reinterpret_cast<float*>(shared + (scan.group + 2) * pairsOf(scan.dk));
  const MapMemory memory{shared, {matrices, matrices + matrixBytes(scan.dk) / sizeof(float)}, &out, &in};
  const int lane = static_cast<int>(blockIdx.x);
  const int lanes = static_cast<int>(gridDim.x);
  if (algorithm == seqparScanDoubling) {
    AnyDoubling(view, scan, lane, lanes, group, memory).run();
  } else if (algorithm == seqparScanTransposed) {
    AnyTransposed(view, scan, lane, lanes, group, memory).run();
  } else {
    AnyGather(view, scan, lane, lanes, algorithm == seqparScanLasp2, group, memory).run();
  }
}

void launchMaps(const PeerView& view, MatrixScan scan, int algorithm, cudaStream_t stream) {
  if (algorithm == seqparScanHier) algorithm = seqparScanTransposed;  // all peers are of one node
  const int most = mostMapPanels(algorithm, static_cast<std::size_t>(scan.dk), scan.wireType);
  // A matrix is sent once a group: large groups, but enough of them for all lanes.
  scan.group = std::clamp(scan.heads * scan.panels() / view.lanes, 1, std::min(most, scan.panels()));
  const std::size_t bytes = mapBytes(scan.dk, scan.group, matricesOf(algorithm));
  checkCuda(cudaFuncSetAttribute(matrixMaps, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
            "cudaFuncSetAttribute");
  const int lanes = std::min(view.lanes, scan.groups());
  matrixMaps<<<lanes, kTensorThreads, bytes, stream>>>(view, scan, algorithm);
  checkCuda(cudaGetLastError(), "matrixMaps");
}

bool isChain(int algorithm) {
  return algorithm == seqparScanChain || algorithm == seqparScanLasp1;
}

}  // namespace

bool deviceMatrixFits(seqparScanAlgorithm_t algorithm, const ScanProblem& problem) {
  return isChain(algorithm) || mostMapPanels(algorithm, problem.dk, problem.wireType) > 0;
}

void launchDeviceMatrixScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                            const seqparScanEstimate_t& choice, DeviceStream stream) {
  const auto algorithm = static_cast<seqparScanAlgorithm_t>(choice.algorithm);
  if (!deviceMatrixFits(algorithm, problem)) {
    fail(seqparInvalidUsage, "a MATRIX scan of dk ", problem.dk, " by algorithm ", choice.algorithm,
         " on GPUs, expected chain or lasp1, or dk up to 128");
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
