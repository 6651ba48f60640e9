// Costs and limits that the algorithms of distributed linear attention share.
#pragma once

#include <string>

#include "attn/problem/algorithm.h"

namespace seqpar::attn::linear {

Estimate estimateZeco(const Problem& problem);
Estimate estimateLasp1(const Problem& problem);
Estimate estimateLasp2(const Problem& problem);
Estimate estimateLocal(const Problem& problem);

/// Whether ZECO on hosts sends states from rank to rank head by head: the last rank starts when the ranks before it
/// have computed their first heads, and waits for less time than a second pass over the tokens takes. Equal on all
/// ranks, without communication.
bool relays(const Problem& problem);

/// Empty, or why the kernels of the problem's device do not support it.
std::string refuses(const Problem& problem);

}  // namespace seqpar::attn::linear
