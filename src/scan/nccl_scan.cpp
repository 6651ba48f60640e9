#include "scan/nccl_scan.h"

#include <algorithm>

#include "base/error.h"
#include "device/arena.h"
#include "scan/cut.h"
#include "scan/nccl_algorithms.h"

namespace seqpar {

void ncclScan(DeviceGroup& group, const ScanProblem& problem, std::span<const int> order, std::span<const int> nodes,
              const seqparScanEstimate_t& choice, DeviceStream stream) {
  if (problem.elements() == 0) return;
  const auto own = std::find(order.begin(), order.end(), group.rank());
  const ScanOrder positions{order, static_cast<int>(own - order.begin()), nodes};
  const auto blocks = static_cast<std::size_t>(std::max(1, choice.blocks));
  const int rails = choice.algorithm == seqparScanHier ? hierRails(positions) : 1;

  DeviceArena& arena = group.arena();
  arena.reset();
  NcclAffine affine(problem, arena, static_cast<cudaStream_t>(stream));
  const NcclScanSetting setting{*group.nccl(), affine, problem.wireType, positions, stream};
  const NcclStep step(setting.nccl, stream);
  switch (choice.algorithm) {
    case seqparScanChain:
      return ncclChain(setting, blocks);
    case seqparScanOneshot:
      return ncclOneshot(setting);
    case seqparScanTransposed:
      return ncclTransposed(setting);
    case seqparScanHier:
      return ncclHier(setting, blocks, rails);
    case seqparScanLasp1:
      return ncclChain(setting, 1);
    case seqparScanLasp2:
      return ncclGatherScan(setting);
    default:
      fail(seqparInvalidUsage, "All-Scan over NCCL: the algorithm ", seqparScanAlgorithmName(choice.algorithm),
           " is not done there; expected chain, oneshot, transposed, hier, lasp1, lasp2 or auto");
  }
}

}  // namespace seqpar
