#include "kernels/scan/kernel.cuh"
#include "kernels/scan/lasp1.h"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

cudaError_t launchLasp1(const PeerView& view, const ScanTask& task, cudaStream_t stream) {
  return withShape(task, [&](auto shape) {
    return launchScanKernel<Lasp1Program<decltype(shape), CudaMemory, CtaGroup>>(view, task, stream);
  });
}

}  // namespace seqpar
