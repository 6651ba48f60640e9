#include "chain_lane.h"
#include "chain_plain_lane.h"
#include "kernel.h"
#include "launch.h"
#include "shape_of.h"

namespace seqpar {

void launchChain(const PeerView& view, const ScanTask& task, ScanStream stream) {
  const auto run = static_cast<cudaStream_t>(stream);
  withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    if (Shape::kPlain && !task.flags) return launchPlainKernel<ChainPlainLane<CudaMemory, CtaGroup>>(view, task, run);
    launchScanKernel<ChainLane<Shape, CudaMemory, CtaGroup, Shape::kPlain ? 4 : 2>>(view, task, run);
  });
}

}  // namespace seqpar
