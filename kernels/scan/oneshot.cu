#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/oneshot.h"
#include "kernels/scan/oneshot_fast.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

void launchOneshot(const PeerView& view, const ScanTask& task, ScanStream stream) {
  const auto run = static_cast<cudaStream_t>(stream);
  withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    using Plain = FastOneshotProgram<CudaMemory, CtaGroup>;
    if (Shape::kFast && !task.flags && Plain::fits(task, scanThreads(task))) {
      return launchFastKernel<Plain>(view, task, run);
    }
    launchScanKernel<OneshotProgram<Shape, CudaMemory, CtaGroup, false>>(view, task, run);
  });
}

void launchLasp2(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<OneshotProgram<decltype(shape), CudaMemory, CtaGroup, true>>(view, task,
                                                                                  static_cast<cudaStream_t>(stream));
  });
}

}  // namespace seqpar
