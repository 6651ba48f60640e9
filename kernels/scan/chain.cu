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
    if (Shape::kPlain && !task.flags) {
      using OneRow = ChainPlainLane<CudaMemory, CtaGroup, 1, true>;
      using Rows = ChainPlainLane<CudaMemory, CtaGroup, 1, false>;
      // Long streams need more in flight, and others come through sooner with less.
      constexpr int kLongCells = 2;
      using LongRows = ChainPlainLane<CudaMemory, CtaGroup, kLongCells, false>;
      const std::uint32_t threads = scanThreads(task);
      if (OneRow::fits(task, threads)) return launchPlainKernel<OneRow>(view, task, run);
      if (task.part(0, 4).size() <= 8 * threads) return launchPlainKernel<Rows>(view, task, run);
      return launchPlainKernel<LongRows>(view, task, run, kLongCells);
    }
    constexpr int kCells = Shape::kPlain ? 4 : 2;
    launchScanKernel<ChainLane<Shape, CudaMemory, CtaGroup, kCells>>(view, task, run, kCells);
  });
}

}  // namespace seqpar
