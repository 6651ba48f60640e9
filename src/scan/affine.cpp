#include "scan/affine.h"

#include "scan/elementwise.h"
#include "scan/matrix.h"

namespace seqpar {

std::unique_ptr<Affine> makeAffine(const ScanProblem& problem) {
  if (problem.op == seqparScanMatrix) return std::make_unique<Matrix>(problem);
  return std::make_unique<Elementwise>(problem);
}

}  // namespace seqpar
