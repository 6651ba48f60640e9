#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"
#include "kernels/scan/transposed.h"
#include "kernels/scan/transposed_fast.h"

namespace seqpar {

int launchTransposed(const PeerView& view, const ScanTask& task, void* stream) {
  auto* const run = static_cast<cudaStream_t>(stream);
  return withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    using Fast = FastTransposedProgram<CudaMemory, CtaGroup>;
    if (Shape::kFast && !task.flags && Fast::fits(task, scanThreads(task))) {
      return launchFastKernel<Fast>(view, task, run);
    }
    return launchScanKernel<TransposedProgram<Shape, CudaMemory, CtaGroup>>(view, task, run);
  });
}

}  // namespace seqpar
