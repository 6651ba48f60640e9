#include "scan/device_matrix.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "channel_cuda.h"
#include "device/cuda.h"
#include "scan/device_matrix_task.h"
#include "scan/matrix_chain.h"
#include "scan/matrix_tensor.cuh"

namespace seqpar {
namespace {

/// Shared memory that every GPU with the tensor core formats used here grants a CTA, less what the runtime keeps.
constexpr std::size_t kSharedBytes = 99 << 10;

/// What a thread needs without spilling; other kernels still find some beside a CTA.
constexpr int kRegisters = 192;

/// Heads of the usual sizes have kernels that are half as long: a kernel that runs once is as fast as its instructions
/// come.
using AnyProduct = TensorProduct<128, false>;

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
  if (scan.dk == 128) return matrixChain<PlainPanels, TensorProduct<128, true>>;
  if (scan.dk == 64) return matrixChain<PlainPanels, TensorProduct<64, true>>;
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

}  // namespace

bool deviceMatrixFits(seqparScanAlgorithm_t algorithm, const ScanProblem&, int) {
  return algorithm == seqparScanChain || algorithm == seqparScanLasp1;
}

void launchDeviceMatrixScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                            const seqparScanEstimate_t& choice, DeviceStream stream) {
  for (const MatrixScan& scan : makeMatrixScans(view, problem, order)) {
    launchChain(view, scan, choice.algorithm != seqparScanLasp1, static_cast<cudaStream_t>(stream));
  }
}

}  // namespace seqpar
