#include "chain_lane.h"
#include "kernel.h"
#include "launch.h"
#include "shape_of.h"

namespace seqpar {

void launchChain(const PeerView& view, const ScanTask& task, ScanStream stream) {
  withShape(task, [&](auto shape) {
    launchScanKernel<ChainLane<decltype(shape), CudaMemory, CtaGroup>>(view, task, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace seqpar
