// Division of a node's processors among its ranks.
#pragma once

#include <sched.h>

#include <span>
#include <vector>

namespace seqpar {

/// Threads of each rank for computation: the sum, over the processors that the rank may use, of 1 / the number of its
/// node's ranks that may use the same processor, rounded down, at least 1. `allowed` and `nodes` have one entry a rank.
/// Where all ranks have a share of 1 or more, no node has more threads than processors.
std::vector<int> processorShares(std::span<const cpu_set_t> allowed, std::span<const int> nodes);

}  // namespace seqpar
