// Kernel arguments of a MATRIX All-Scan on a GPU.
#pragma once

#include <span>
#include <vector>

#include "kernels/peers.h"
#include "kernels/scan/matrix_plan.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// The launches, in order, with up to kMatrixHeads heads each. `order` is the peer at each position, including this
/// one. Throws InvalidUsage for heads of more than 2^30 rows or columns.
std::vector<MatrixScan> makeMatrixScans(const PeerView& view, const ScanProblem& problem, std::span<const int> order);

}  // namespace seqpar
