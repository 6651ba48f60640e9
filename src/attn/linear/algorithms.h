// Costs and limits that the algorithms of distributed linear attention share.
#pragma once

#include <string>

#include "attn/problem/algorithm.h"

namespace seqpar::attn::linear {

Estimate estimateZeco(const Problem& problem);
Estimate estimateLasp1(const Problem& problem);
Estimate estimateLasp2(const Problem& problem);
Estimate estimateLocal(const Problem& problem);

/// Empty, or why the kernels of the problem's device do not support it.
std::string refuses(const Problem& problem);

}  // namespace seqpar::attn::linear
