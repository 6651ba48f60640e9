#include "scan/peers/scan.h"

#include "base/error.h"
#include "device/cuda.h"
#include "kernels/scan/launch.h"
#include "scan/peers/task.h"

namespace seqpar {
namespace {

using Launch = cudaError_t (*)(const PeerView& view, const ScanTask& task, cudaStream_t stream);

Launch launchOf(int algorithm) {
  switch (algorithm) {
    case seqparScanChain:
      return launchChain;
    case seqparScanOneshot:
      return launchOneshot;
    case seqparScanTransposed:
    case seqparScanHier:
      return launchTransposed;
    case seqparScanDoubling:
      return launchDoubling;
    case seqparScanLasp1:
      return launchLasp1;
    case seqparScanLasp2:
      return launchLasp2;
    default:
      fail(seqparInternalError, "a scan by algorithm ", algorithm, ", which is none");
  }
}

}  // namespace

void launchDeviceScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                      const seqparScanEstimate_t& choice, DeviceStream stream) {
  if (problem.op == seqparScanMatrix) fail(seqparInvalidUsage, "an element-wise scan of matrices");
  const Launch launch = order.size() == 1 ? launchChain : launchOf(choice.algorithm);
  for (const ScanTask& task : makeScanTasks(view, problem, order)) {
    checkCuda(launch(view, task, static_cast<cudaStream_t>(stream)), "scanKernel");
  }
}

}  // namespace seqpar
