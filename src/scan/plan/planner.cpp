#include "scan/plan/planner.h"

#include "scan/cost.h"
#include "scan/plan/backend.h"

namespace seqpar {
namespace {

/// Programs use a handful of shapes; one with ever new shapes must not fill memory.
constexpr size_t kMostShapes = 1024;

}  // namespace

ScanPlanner::ScanPlanner(Communicator& comm) {
  try {
    backend_ = makeScanBackend(comm);
  } catch (...) {
    comm.abort();  // the other ranks wait in the same step
    throw;
  }
  if (const auto links = backend_->links()) comm.recordLinks(*links);
}

std::vector<seqparScanEstimate_t> ScanPlanner::estimates(const ScanProblem& problem, int blocks) const {
  return backend_->estimates(problem, blocks);
}

seqparScanEstimate_t ScanPlanner::choice(std::vector<seqparScanEstimate_t> all, const ScanProblem& problem,
                                         int algorithm) const {
  if (algorithm == seqparScanAuto && !problem.multipliesFreely()) {
    std::erase_if(all, [&](const auto& each) { return backend_->multiplies(scanAlgorithm(each.algorithm)); });
  }
  return chooseScan(all, algorithm);
}

seqparScanEstimate_t ScanPlanner::choose(const ScanProblem& problem, int algorithm, int blocks) {
  const Key key{
      problem.op, problem.direction,         problem.heads, problem.dk, problem.dv, problem.wireType, algorithm,
      blocks,     problem.multipliesFreely()};
  const std::lock_guard lock(mutex_);
  const auto known = chosen_.find(key);
  if (known != chosen_.end()) return known->second;
  if (chosen_.size() >= kMostShapes) chosen_.clear();
  return chosen_[key] = choice(estimates(problem, blocks), problem, algorithm);
}

}  // namespace seqpar
