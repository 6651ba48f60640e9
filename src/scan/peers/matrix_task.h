// A MATRIX All-Scan of a GPU, as what its kernels get.
#pragma once

#include <span>
#include <vector>

#include "kernels/peers.h"
#include "kernels/scan/matrix_plan.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// What is to be launched, one after the other: up to kMatrixHeads heads each. `order` names the peer at each position,
/// this one among them. InvalidUsage for heads of more than 2^30 rows or columns.
std::vector<MatrixScan> makeMatrixScans(const PeerView& view, const ScanProblem& problem, std::span<const int> order);

}  // namespace seqpar
