#include "kernel.h"
#include "launch.h"
#include "shape_of.h"
#include "transposed_lane.h"

namespace seqpar {

void launchTransposed(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<TransposedLane<decltype(shape), CudaMemory, CtaGroup>>(view, task,
                                                                            static_cast<cudaStream_t>(stream));
  });
}

}  // namespace seqpar
