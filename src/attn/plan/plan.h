// A plan: a problem, the algorithm that was chosen for it, and what carries it out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attn/plan/registry.h"

namespace seqpar::attn {

/// An algorithm's answer to a problem.
struct Candidate {
  const AlgorithmRow* row;
  std::string refusal;  ///< empty: it can
  Estimate estimate;
};

/// Gives the problem the shards that it has with an algorithm: the caller's, or the algorithm's own.
Problem shardedFor(const Problem& problem, const AlgorithmRow& row);

/// All algorithms of the problem's family, with their times if `estimates`. The same on all ranks.
std::vector<Candidate> candidatesFor(const Problem& problem, bool estimates);

/// The row for desc.algorithm, or the fastest of the candidates with AUTO. Throws Error in the name of `call`.
const AlgorithmRow& chooseAlgorithm(const char* call, const Problem& problem, const std::vector<Candidate>& candidates);

class Plan {
 public:
  Plan(const char* call, const seqparAttnDesc_t* desc, seqparComm_t comm);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();  ///< waits for enqueued work

  const Problem& problem() const { return problem_; }
  const AlgorithmRow& algorithm() const { return *row_; }
  size_t workspaceBytes() const { return bytes_; }
  size_t reserveBytes() const { return reserveBytes_; }
  bool prepared() const { return prepared_; }

  /// `workspace` null: takes its own. Throws Error.
  void prepare(void* workspace);
  void forward(const seqparAttnForwardArgs_t& args, void* stream);
  void backward(const seqparAttnBackwardArgs_t& args, void* stream);
  std::string explain() const;

 private:
  void openReserve(const void* memory);

  Problem problem_;
  const AlgorithmRow* row_;
  std::unique_ptr<Exec> exec_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<Operator> operator_;
  size_t bytes_ = 0, reserveBytes_ = 0;
  bool prepared_ = false;
};

}  // namespace seqpar::attn
