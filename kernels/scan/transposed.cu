#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"
#include "kernels/scan/transposed.h"
#include "kernels/scan/transposed_fast.h"

namespace seqpar {

cudaError_t launchTransposed(const PeerView& view, const ScanTask& task, cudaStream_t stream) {
  return withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    using Fast = FastTransposedProgram<CudaMemory, CtaGroup>;
    if (Shape::kFast && !task.flags && Fast::fits(task, scanThreads(task))) {
      return launchFastKernel<Fast>(view, task, stream);
    }
    return launchScanKernel<TransposedProgram<Shape, CudaMemory, CtaGroup>>(view, task, stream);
  });
}

}  // namespace seqpar
