#include "kernels/scan/chain.h"
#include "kernels/scan/chain_fast.h"
#include "kernels/scan/kernel.cuh"
#include "kernels/scan/launch.h"
#include "kernels/scan/shape_of.h"

namespace seqpar {

int launchChain(const PeerView& view, const ScanTask& task, void* stream) {
  auto* const run = static_cast<cudaStream_t>(stream);
  return withShape(task, [&](auto shape) {
    using Shape = decltype(shape);
    if (Shape::kFast && !task.flags) {
      using OneRow = FastChainProgram<CudaMemory, CtaGroup, 1, true>;
      using Rows = FastChainProgram<CudaMemory, CtaGroup, 1, false>;
      // Long streams need more packets in flight; short ones finish sooner with fewer.
      constexpr int kLongVecs = 2;
      using LongRows = FastChainProgram<CudaMemory, CtaGroup, kLongVecs, false>;
      const std::uint32_t threads = scanThreads(task);
      if (OneRow::fits(task, threads)) return launchFastKernel<OneRow>(view, task, run);
      if (task.part(0, 4).size() <= 8 * threads) return launchFastKernel<Rows>(view, task, run);
      return launchFastKernel<LongRows>(view, task, run, kLongVecs);
    }
    constexpr int kVecs = Shape::kFast ? 4 : 2;
    return launchScanKernel<ChainProgram<Shape, CudaMemory, CtaGroup, kVecs>>(view, task, run, kVecs);
  });
}

}  // namespace seqpar
