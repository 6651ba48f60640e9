// An element-wise All-Scan of a GPU, as what its kernels get.
#pragma once

#include <span>
#include <vector>

#include "kernels/peers.h"
#include "kernels/scan/task.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// What is to be launched, one after the other; all ranks get as many, with the same channels. `order` names the peer
/// at each position, this one among them. InvalidUsage for heads of 2^31 elements and more.
std::vector<ScanTask> makeScanTasks(const PeerView& view, const ScanProblem& problem, std::span<const int> order);

}  // namespace seqpar
