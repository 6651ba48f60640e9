#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"
#include "kernels/scan/transposed.h"
#include "kernels/scan/transposed_fast.h"

namespace seqpar {

void launchTransposed(const PeerView& view, const ScanTask& task, ScanStream stream) {
  const auto run = static_cast<cudaStream_t>(stream);
  withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    using Plain = FastTransposedProgram<CudaMemory, CtaGroup>;
    if (Shape::kFast && !task.flags && Plain::fits(task, scanThreads(task))) {
      return launchFastKernel<Plain>(view, task, run);
    }
    launchScanKernel<TransposedProgram<Shape, CudaMemory, CtaGroup>>(view, task, run);
  });
}

}  // namespace seqpar
