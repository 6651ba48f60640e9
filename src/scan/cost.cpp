#include "scan/cost.h"

namespace seqpar {

seqparScanEstimate_t chooseScan(std::span<const seqparScanEstimate_t> estimates, int algorithm) {
  if (algorithm == seqparScanAuto) return estimates.front();
  const ScanAlgorithm& row = scanAlgorithm(algorithm);
  return *std::find_if(estimates.begin(), estimates.end(), [&](const auto& each) { return each.algorithm == row.id; });
}

}  // namespace seqpar
