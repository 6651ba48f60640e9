// LOCAL, which also computes the attention of one rank for algorithms that need two or more.
#pragma once

#include <memory>

#include "attn/problem/operator.h"

namespace seqpar::attn {

std::unique_ptr<Operator> makeLocal(const Problem& problem, Exec& exec);

/// AlgorithmRow::make of an operator for two or more ranks; one rank runs LOCAL.
template <typename Algorithm>
std::unique_ptr<Operator> makeOrLocal(const Problem& problem, Exec& exec) {
  if (problem.ranks() == 1) return makeLocal(problem, exec);
  return std::make_unique<Algorithm>(problem, exec);
}

}  // namespace seqpar::attn
