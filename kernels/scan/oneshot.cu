#include "kernel.h"
#include "launch.h"
#include "oneshot_lane.h"
#include "oneshot_plain_lane.h"
#include "shape_of.h"

namespace seqpar {

void launchOneshot(const PeerView& view, const ScanTask& task, ScanStream stream) {
  const auto run = static_cast<cudaStream_t>(stream);
  withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    using Plain = OneshotPlainLane<CudaMemory, CtaGroup>;
    if (Shape::kPlain && !task.flags && Plain::fits(task, scanThreads(task))) {
      return launchPlainKernel<Plain>(view, task, run);
    }
    launchScanKernel<OneshotLane<Shape, CudaMemory, CtaGroup, false>>(view, task, run);
  });
}

void launchLasp2(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<OneshotLane<decltype(shape), CudaMemory, CtaGroup, true>>(view, task,
                                                                               static_cast<cudaStream_t>(stream));
  });
}

}  // namespace seqpar
