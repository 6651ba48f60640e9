#include "scan/device_matrix.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "base/convert.h"
#include "channel_cuda.h"
#include "device/cuda.h"
#include "scan/matrix_chain.h"
#include "scan/matrix_tensor.cuh"

namespace seqpar {
namespace {

/// Shared memory that every GPU with the tensor core formats used here grants a CTA, less what the runtime keeps.
constexpr std::size_t kSharedBytes = 99 << 10;

/// `scratch` is the pairs of all lanes where shared memory cannot hold them; else null.
__global__ void __launch_bounds__(TensorProduct::kThreads, 1)
    matrixChain(const __grid_constant__ PeerView view, const __grid_constant__ MatrixScan scan,
                SplitNumber* __restrict__ scratch) {
  extern __shared__ SplitNumber shared[];
  const int lane = static_cast<int>(blockIdx.x);
  const CtaGroup group;
  SplitNumber* const mine = scratch == nullptr ? shared : scratch + lane * (2 * scan.group * pairsOf(scan.dk));
  MatrixChain<CudaMemory, CtaGroup, TensorProduct> chain(view, scan, lane, group, mine);
  chain.run(partOf({0, scan.groups()}, lane, static_cast<int>(gridDim.x)));
}

template <class Pointer>
Pointer atHead(Pointer buffer, std::size_t elementsBefore, seqparDataType_t type) {
  if (buffer == nullptr) return nullptr;
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
  return static_cast<Byte*>(buffer) + elementsBefore * sizeOf(type);
}

/// The heads [head, head + count) of a problem.
MatrixScan describe(const ScanProblem& problem, std::span<const int> order, const PeerView& view, std::size_t head,
                    std::size_t count) {
  MatrixScan scan;
  const std::size_t before = head * problem.dk * problem.dv;
  scan.state = atHead(problem.state, before, problem.stateType);
  scan.initial = atHead(problem.initial, before, problem.stateType);
  scan.prefix = atHead(problem.prefix, before, problem.stateType);
  scan.total = atHead(problem.total, before, problem.stateType);
  scan.transition = static_cast<const float*>(problem.transition) + head * problem.dk * problem.dk;
  scan.heads = static_cast<int>(count);
  scan.dk = static_cast<int>(problem.dk);
  scan.dv = static_cast<int>(problem.dv);
  scan.stateType = problem.stateType;
  scan.wireType = problem.wireType;
  scan.reverse = problem.direction == seqparReverse;
  scan.paired = problem.dv % 2 == 0;
  for (const void* buffer :
       {scan.state, scan.initial, static_cast<const void*>(scan.prefix), static_cast<const void*>(scan.total)}) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer);
    scan.paired = scan.paired && address % (2 * sizeOf(problem.stateType)) == 0;
  }
  scan.positions = static_cast<int>(order.size());
  for (int position = 0; position < scan.positions; ++position) {
    scan.order[position] = static_cast<std::int8_t>(order[static_cast<std::size_t>(position)]);
    if (scan.order[position] == view.self) scan.position = position;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned flags = problem.headFlags[head + i];
    if ((flags & SEQPAR_SCAN_RESET_IN) != 0) scan.resets.set(static_cast<int>(i));
    if ((flags & SEQPAR_SCAN_CUT) != 0) scan.cuts.set(static_cast<int>(i));
  }
  return scan;
}

void launchChain(const PeerView& view, MatrixScan scan, bool pipelined, cudaStream_t stream) {
  const std::size_t panel = 2 * pairsOf(scan.dk) * sizeof(SplitNumber);
  if (!pipelined) scan.group = static_cast<int>(std::clamp<std::size_t>(kSharedBytes / panel, 1, scan.panels()));
  const std::size_t bytes = panel * scan.group;
  const int lanes = std::min(view.lanes, scan.groups());
  if (bytes <= kSharedBytes) {
    checkCuda(cudaFuncSetAttribute(matrixChain, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
              "cudaFuncSetAttribute");
    matrixChain<<<lanes, TensorProduct::kThreads, bytes, stream>>>(view, scan, nullptr);
    checkCuda(cudaGetLastError(), "matrixChain");
    return;
  }
  void* scratch = nullptr;
  checkCuda(cudaMallocAsync(&scratch, lanes * bytes, stream), "cudaMallocAsync");
  matrixChain<<<lanes, TensorProduct::kThreads, 0, stream>>>(view, scan, static_cast<SplitNumber*>(scratch));
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
  constexpr std::size_t kMostExtent = 1 << 30;
  if (problem.dk > kMostExtent || problem.dv > kMostExtent) {
    fail(seqparInvalidUsage, "MATRIX scan: dk ", problem.dk, " x dv ", problem.dv, ", expected at most ", kMostExtent,
         " on a GPU");
  }
  const auto algorithm = static_cast<seqparScanAlgorithm_t>(choice.algorithm);
  for (std::size_t head = 0; head < problem.heads; head += kMatrixHeads) {
    const std::size_t count = std::min<std::size_t>(kMatrixHeads, problem.heads - head);
    const MatrixScan scan = describe(problem, order, view, head, count);
    launchChain(view, scan, algorithm != seqparScanLasp1, static_cast<cudaStream_t>(stream));
  }
}

}  // namespace seqpar
