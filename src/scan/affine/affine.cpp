#include "scan/affine/affine.h"

#include "scan/affine/elementwise.h"
#include "scan/affine/matrix.h"

namespace seqpar {

std::unique_ptr<Affine> makeAffine(const ScanProblem& problem) {
  if (problem.op == seqparScanMatrix) return std::make_unique<Matrix>(problem);
  return std::make_unique<Elementwise>(problem);
}

BlockSize finestBlock(const ScanProblem& problem) {
  return problem.op == seqparScanMatrix ? Matrix::finest(problem) : Elementwise::finest(problem);
}

}  // namespace seqpar
