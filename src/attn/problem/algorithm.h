// A row of the table of algorithms. The file of an algorithm registers its row.
#pragma once

#include <memory>
#include <string>

#include "attn/problem/operator.h"

namespace seqpar::attn {

/// Modeled times of one call on the slowest rank, us.
struct Estimate {
  double forwardUs = 0, backwardUs = 0;
  double bytes = 0;  ///< sent by a rank, forward and backward; the mean of the ranks
  double us() const { return forwardUs + backwardUs; }
};

/// AlgorithmRow::refuses of algorithms that support everything.
std::string refusesNothing(const Problem& problem);

/// Zigzag where later tokens attend to more keys than earlier ones, which balances the work; otherwise contiguous.
seqparLayoutKind_t balancedLayout(const Problem& problem);
seqparLayoutKind_t contiguousLayout(const Problem& problem);
seqparLayoutKind_t zigzagLayout(const Problem& problem);
seqparLayoutKind_t stripedLayout(const Problem& problem);

struct AlgorithmRow {
  seqparAttnAlgorithm_t id;
  const char* name;
  const char* paper;    ///< title or system, arXiv number, section
  bool softmax = true;  ///< false: linear attention
  /// Empty, or why the algorithm does not support the problem: a clause such as "attends to full masks only". The
  /// shards are not known yet, unless the caller gave them.
  std::string (*refuses)(const Problem& problem) = refusesNothing;
  /// The layout on problem.ranks() ranks where the caller gave none.
  seqparLayoutKind_t (*ownLayout)(const Problem& problem) = contiguousLayout;
  /// The modeled time; the problem's shards are set.
  Estimate (*estimate)(const Problem& problem);
  std::unique_ptr<Operator> (*make)(const Problem& problem, Exec& exec);
};

/// AlgorithmRow::make of an operator that is constructed from the problem alone.
template <typename Algorithm>
std::unique_ptr<Operator> makeOperator(const Problem& problem, Exec& exec) {
  return std::make_unique<Algorithm>(problem, exec);
}

/// Adds a row to the table while the library is loaded. Constructed as a constant of the algorithm's file.
class RegisteredAlgorithm {
 public:
  explicit RegisteredAlgorithm(const AlgorithmRow& row) noexcept : row_(row), next_(first_) { first_ = this; }

  const AlgorithmRow& row() const { return row_; }
  const RegisteredAlgorithm* next() const { return next_; }
  /// Head of the list of all, in no order; nullptr after the last.
  static const RegisteredAlgorithm* first() { return first_; }

 private:
  AlgorithmRow row_;
  const RegisteredAlgorithm* next_;
  static constinit const RegisteredAlgorithm* first_;
};

}  // namespace seqpar::attn
