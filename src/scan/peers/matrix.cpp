#include "scan/peers/matrix.h"

#include "device/cuda.h"
#include "scan/peers/matrix_task.h"

namespace seqpar {

bool deviceMatrixFits(seqparScanAlgorithm_t algorithm, const ScanProblem& problem, int channels) {
  return matrixScanFits(algorithm, problem.dk, problem.wireType, channels);
}

void launchDeviceMatrixScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                            const seqparScanEstimate_t& choice, DeviceStream stream) {
  const auto algorithm = static_cast<seqparScanAlgorithm_t>(choice.algorithm);
  if (order.size() > 1 && !deviceMatrixFits(algorithm, problem, view.channels)) {
    fail(seqparInvalidUsage, "a MATRIX scan of dk ", problem.dk, " by ", seqparScanAlgorithmName(algorithm),
         " on GPUs with config.ctas ", view.channels,
         ", expected dk up to 752 (1520 in 16 bits on the wire) by chain or",
         " lasp1, up to 128 by others with 2 CTAs, up to 80 with one");
  }
  for (const MatrixScan& scan : makeMatrixScans(view, problem, order)) {
    checkCuda(launchMatrixScan(view, scan, algorithm, static_cast<cudaStream_t>(stream)), "a kernel of MATRIX scans");
  }
}

}  // namespace seqpar
