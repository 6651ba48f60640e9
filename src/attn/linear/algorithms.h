// The algorithms of distributed linear attention, each from the file of its name, and their costs.
#pragma once

#include <memory>
#include <string>

#include "attn/problem/algorithm.h"

namespace seqpar::attn::linear {

std::unique_ptr<Operator> makeZeco(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeLasp1(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeLasp2(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeLocal(const Problem& problem, Exec& exec);

Estimate estimateZeco(const Problem& problem, double flops);
Estimate estimateLasp1(const Problem& problem, double flops);
Estimate estimateLasp2(const Problem& problem, double flops);
Estimate estimateLocal(const Problem& problem, double flops);

/// Empty, or what the kernels of the problem's device lack for it.
std::string refuses(const Problem& problem);

}  // namespace seqpar::attn::linear
