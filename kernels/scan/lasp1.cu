#include "kernels/scan/kernel.cuh"
#include "kernels/scan/lasp1.h"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

void launchLasp1(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<Lasp1Program<decltype(shape), CudaMemory, CtaGroup>>(view, task,
                                                                          static_cast<cudaStream_t>(stream));
  });
}

}  // namespace seqpar
