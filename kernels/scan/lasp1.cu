#include "kernels/scan/kernel.cuh"
#include "kernels/scan/lasp1.h"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

int launchLasp1(const PeerView& view, const ScanTask& task, void* stream) {
  auto* const run = static_cast<cudaStream_t>(stream);
  return withShape(task, [&](auto shape) {
    return launchScanKernel<Lasp1Program<decltype(shape), CudaMemory, CtaGroup>>(view, task, run);
  });
}

}  // namespace seqpar
