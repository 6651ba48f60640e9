// A plan: a problem, the algorithm chosen for it, and the operator that runs the algorithm.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/exec/exec_scope.h"
#include "attn/exec/one_thread.h"
#include "attn/plan/registry.h"

namespace seqpar::attn {

/// An algorithm, and its refusal or estimate for a problem.
struct Candidate {
  const AlgorithmRow* row;
  std::string refusal;  ///< empty: the algorithm supports the problem
  Estimate estimate;
};

/// The problem with its shards set: by the caller's layout if there is one, otherwise by the algorithm's own layout.
Problem shardedFor(const Problem& problem, const AlgorithmRow& row);

/// All algorithms of the problem's family, with modeled times if `estimates`. Equal on all ranks.
std::vector<Candidate> candidatesFor(const Problem& problem, bool estimates);

/// The row for desc.algorithm, or the fastest of the candidates with AUTO. Throws Error, which names `call`.
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
  const Operator& chosen() const { return *operator_; }

  /// `workspace` null: allocates its own. Throws Error.
  void prepare(void* workspace);
  /// Runs body(operator), a pass of all ranks, in the C function `call`. `outputs`: tensors that it overwrites.
  /// `reserve`: memory of the forward's data for the backward, which this pass writes or only reads. Throws Error, also
  /// if another thread is inside run().
  template <typename Body>
  void run(const char* call, void* stream, std::span<const Tensor> outputs, const void* reserve, const Body& body) {
    const OneThread alone(busy_, call);
    runPass(call, passArguments_, *exec_, problem_.comm, stream, outputs, [&] {
      openReserve(reserve);
      body(*operator_);
    });
  }
  std::string explain() const;

 private:
  void openReserve(const void* memory);

  Problem problem_;
  const AlgorithmRow* row_;
  std::vector<seqparCompared_t> passArguments_;  ///< numbers
  std::unique_ptr<Exec> exec_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<Operator> operator_;
  size_t bytes_ = 0, reserveBytes_ = 0;
  bool prepared_ = false;
  std::atomic_flag busy_;
};

}  // namespace seqpar::attn
