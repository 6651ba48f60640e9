#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/oneshot.h"
#include "kernels/scan/oneshot_fast.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

int launchOneshot(const PeerView& view, const ScanTask& task, void* stream) {
  auto* const run = static_cast<cudaStream_t>(stream);
  return withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    using Fast = FastOneshotProgram<CudaMemory, CtaGroup>;
    if (Shape::kFast && !task.flags && Fast::fits(task, scanThreads(task))) {
      return launchFastKernel<Fast>(view, task, run);
    }
    return launchScanKernel<OneshotProgram<Shape, CudaMemory, CtaGroup, false>>(view, task, run);
  });
}

int launchLasp2(const PeerView& view, const ScanTask& task, void* stream) {
  auto* const run = static_cast<cudaStream_t>(stream);
  return withShape(task, [&](auto shape) {
    return launchScanKernel<OneshotProgram<decltype(shape), CudaMemory, CtaGroup, true>>(view, task, run);
  });
}

}  // namespace seqpar
