// An algorithm as the table of algorithms has it.
#pragma once

#include <memory>
#include <string>

#include "attn/problem/operator.h"

namespace seqpar::attn {

/// Modeled times of one call on the slowest rank, us.
struct Estimate {
  double forwardUs = 0, backwardUs = 0;
  double bytes = 0;  ///< that a rank sends, forward and backward; the mean of the ranks
  double us() const { return forwardUs + backwardUs; }
};

struct AlgorithmRow {
  seqparAttnAlgorithm_t id;
  const char* name;
  const char* paper;  ///< title or system, arXiv number, section
  bool softmax;       ///< false: linear attention
  /// Empty, or why the algorithm cannot do this: a clause such as "attends to full masks only". Shards are not known
  /// yet, unless the caller gave them.
  std::string (*refuses)(const Problem& problem);
  /// The layout that the algorithm brings where the caller gave none, on problem.ranks() ranks.
  seqparLayoutKind_t (*ownLayout)(const Problem& problem);
  /// The model's time; problem's shards are set. `flops`: a second, of the block kernel.
  Estimate (*estimate)(const Problem& problem, double flops);
  std::unique_ptr<Operator> (*make)(const Problem& problem, Exec& exec);
};

}  // namespace seqpar::attn
