#include "scan/nccl/scan.h"

#include <algorithm>

#include "base/error.h"
#include "device/arena.h"
#include "scan/cut.h"
#include "scan/nccl/algorithms.h"
#include "scan/registry.h"

namespace seqpar {

void ncclScan(DeviceGroup& group, const ScanProblem& problem, std::span<const int> order, std::span<const int> nodes,
              const seqparScanEstimate_t& choice, DeviceStream stream) {
  if (problem.elements() == 0) return;
  const auto own = std::find(order.begin(), order.end(), group.rank());
  const ScanOrder positions{order, static_cast<int>(own - order.begin()), nodes};
  const ScanAlgorithm& row = scanAlgorithm(choice.algorithm);
  if (row.nccl.run == nullptr) {
    fail(seqparInvalidUsage, "All-Scan over NCCL: the algorithm ", row.name, " is not done there; expected ",
         scanAlgorithmsThat([](const ScanAlgorithm& other) { return other.nccl.run != nullptr; }));
  }
  if (row.traffic == ScanTraffic::NodeShards) hierRails(positions);  // refuses before anything is enqueued

  DeviceArena& arena = group.arena();
  arena.reset();
  NcclAffine affine(problem, arena, static_cast<cudaStream_t>(stream));
  const NcclScanSetting setting{*group.nccl(), affine, problem.wireType, positions, stream};
  const NcclStep step(setting.nccl, stream);
  row.nccl.run(setting, static_cast<std::size_t>(std::max(1, choice.blocks)));
}

}  // namespace seqpar
