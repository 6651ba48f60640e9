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

template <class Shape>
using Chain = MatrixChain<Shape, CudaMemory, CtaGroup, TensorProduct>;

/// `scratch` is the pairs of all lanes where shared memory cannot hold them; else null.
template <class Shape>
__global__ void __maxnreg__(kRegisters)
    matrixChain(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan,
                SplitNumber* __restrict__ scratch) {
  extern __shared__ SplitNumber shared[];
  const int lane = static_cast<int>(blockIdx.x);
  const CtaGroup group;
  SplitNumber* const mine = scratch == nullptr ? shared : scratch + lane * (2 * scan.group * pairsOf(scan.dk));
  Chain<Shape> chain(view, scan, lane, group, mine);
  chain.run(partOf({0, scan.groups()}, lane, static_cast<int>(gridDim.x)));
}

void launchChain(const PeerView& view, MatrixScan scan, bool pipelined, cudaStream_t stream) {
  const std::size_t panel = 2 * pairsOf(scan.dk) * sizeof(SplitNumber);
  if (!pipelined) scan.group = static_cast<int>(std::clamp<std::size_t>(kSharedBytes / panel, 1, scan.panels()));
  const std::size_t bytes = panel * scan.group;
  const int lanes = std::min(view.lanes, scan.groups());
  const auto kernel = arePlain(scan) ? matrixChain<PlainPanels> : matrixChain<AnyPanels>;
  if (bytes <= kSharedBytes) {
    checkCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
              "cudaFuncSetAttribute");
    kernel<<<lanes, TensorProduct::kThreads, bytes, stream>>>(view, scan, nullptr);
    checkCuda(cudaGetLastError(), "matrixChain");
    return;
  }
  void* scratch = nullptr;
  checkCuda(cudaMallocAsync(&scratch, lanes * bytes, stream), "cudaMallocAsync");
  kernel<<<lanes, TensorProduct::kThreads, 0, stream>>>(view, scan, static_cast<SplitNumber*>(scratch));
  const cudaError_t launched = cudaGetLastError();
  checkCuda(cudaFreeAsync(scratch, stream), "cudaFreeAsync");
  checkCuda(launched, "matrixChain");
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
