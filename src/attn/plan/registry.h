// The table of algorithms: everything that depends on which there are comes from it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "attn/plan/operator.h"

namespace seqpar::attn {

/// Modelled times of one call on the slowest rank, us.
struct Estimate {
  double forwardUs = 0, backwardUs = 0;
  double bytes = 0;  ///< that a rank sends, forward and backward
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

/// All that this version has, in the order of their numbers. AUTO is no row.
std::span<const AlgorithmRow> algorithms();

/// The row of a number for softmax or for linear attention (LOCAL has one for each); null if there is none.
const AlgorithmRow* findAlgorithm(int id, bool softmax);

/// "ring, zigzag, striped": the algorithms of the problem's family that do not refuse it; "none" without any.
std::string algorithmsThatCan(const Problem& problem);

}  // namespace seqpar::attn
