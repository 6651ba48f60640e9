// Kernel arguments of an element-wise All-Scan on a GPU.
#pragma once

#include <span>
#include <vector>

#include "kernels/peers.h"
#include "kernels/scan/task.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// The launches, in order; their number and their channels are the same on all ranks. `order` is the peer at each
/// position, including this one. Throws InvalidUsage for heads of 2^31 elements and more.
std::vector<ScanTask> makeScanTasks(const PeerView& view, const ScanProblem& problem, std::span<const int> order);

}  // namespace seqpar
