#include "kernel.h"
#include "launch.h"
#include "oneshot_lane.h"
#include "shape_of.h"

namespace seqpar {

void launchOneshot(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<OneshotLane<decltype(shape), CudaMemory, CtaGroup, false>>(view, task,
                                                                                static_cast<cudaStream_t>(stream));
  });
}

void launchLasp2(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<OneshotLane<decltype(shape), CudaMemory, CtaGroup, true>>(view, task,
                                                                               static_cast<cudaStream_t>(stream));
  });
}

}  // namespace seqpar
