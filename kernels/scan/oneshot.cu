#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/oneshot.h"
#include "kernels/scan/oneshot_fast.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

cudaError_t launchOneshot(const PeerView& view, const ScanTask& task, cudaStream_t stream) {
  return withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    using Fast = FastOneshotProgram<CudaMemory, CtaGroup>;
    if (Shape::kFast && !task.flags && Fast::fits(task, scanThreads(task))) {
      return launchFastKernel<Fast>(view, task, stream);
    }
    return launchScanKernel<OneshotProgram<Shape, CudaMemory, CtaGroup, false>>(view, task, stream);
  });
}

cudaError_t launchLasp2(const PeerView& view, const ScanTask& task, cudaStream_t stream) {
  return withShape(task, [&](auto shape) {
    return launchScanKernel<OneshotProgram<decltype(shape), CudaMemory, CtaGroup, true>>(view, task, stream);
  });
}

}  // namespace seqpar
