#include "kernels/scan/doubling.h"
#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

void launchDoubling(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<DoublingProgram<decltype(shape), CudaMemory, CtaGroup>>(view, task,
                                                                             static_cast<cudaStream_t>(stream));
  });
}

}  // namespace seqpar
