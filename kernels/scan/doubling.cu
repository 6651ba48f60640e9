#include "kernels/scan/doubling.h"
#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

cudaError_t launchDoubling(const PeerView& view, const ScanTask& task, cudaStream_t stream) {
  return withShape(task, [&](auto shape) {
    return launchScanKernel<DoublingProgram<decltype(shape), CudaMemory, CtaGroup>>(view, task, stream);
  });
}

}  // namespace seqpar
