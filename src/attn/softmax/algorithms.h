// The algorithms of softmax attention, each from the file of its name; ring.cpp has ZIGZAG and STRIPED too.
#pragma once

#include <memory>

#include "attn/plan/operator.h"

namespace seqpar::attn {

std::unique_ptr<Operator> makeLocal(const Problem& problem, Exec& exec);
std::unique_ptr<Operator> makeRing(const Problem& problem, Exec& exec);

}  // namespace seqpar::attn
