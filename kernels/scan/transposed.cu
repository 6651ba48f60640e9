#include "kernel.h"
#include "launch.h"
#include "shape_of.h"
#include "transposed_lane.h"
#include "transposed_plain_lane.h"

namespace seqpar {

void launchTransposed(const PeerView& view, const ScanTask& task, ScanStream stream) {
  const auto run = static_cast<cudaStream_t>(stream);
  withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    using Plain = TransposedPlainLane<CudaMemory, CtaGroup>;
    if (Shape::kPlain && !task.flags && Plain::fits(task, scanThreads(task))) {
      return launchPlainKernel<Plain>(view, task, run);
    }
    launchScanKernel<TransposedLane<Shape, CudaMemory, CtaGroup>>(view, task, run);
  });
}

}  // namespace seqpar
