#include "kernel.h"
#include "lasp1_lane.h"
#include "launch.h"
#include "shape_of.h"

namespace seqpar {

void launchLasp1(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<Lasp1Lane<decltype(shape), CudaMemory, CtaGroup>>(view, task, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace seqpar
