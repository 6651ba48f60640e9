#include "kernels/scan/doubling.h"
#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

int launchDoubling(const PeerView& view, const ScanTask& task, void* stream) {
  auto* const run = static_cast<cudaStream_t>(stream);
  return withShape(task, [&](auto shape) {
    return launchScanKernel<DoublingProgram<decltype(shape), CudaMemory, CtaGroup>>(view, task, run);
  });
}

}  // namespace seqpar
