#include "scan/plan/planner.h"

#include "scan/cost.h"
#include "scan/host_model.h"
#include "scan/plan/all_scan.h"

namespace seqpar {
namespace {

/// A program has a handful of shapes; one that makes up new ones all the time must not fill memory.
constexpr size_t kMostShapes = 1024;

}  // namespace

ScanPlanner::ScanPlanner(Communicator& comm) : comm_(comm) {
  if (comm.device() == nullptr) return;
  try {
    device_ = makeDevicePlan(comm);
  } catch (...) {
    comm.abort();  // the other ranks are waiting in the same step
    throw;
  }
  comm.recordLinks(device_->links());
}

std::vector<seqparScanEstimate_t> ScanPlanner::estimates(const ScanProblem& problem, int blocks) const {
  if (device_) return device_->estimates(problem, blocks);
  const auto nodes = scanNodes(comm_, problem.direction);
  const auto& mailbox = comm_.mailbox();
  return estimateScan(problem, {comm_.size(), nodes, comm_.links(), mailbox.maxMessage(), mailbox.window()}, blocks);
}

seqparScanEstimate_t ScanPlanner::choose(const ScanProblem& problem, int algorithm, int blocks) {
  const Key key{problem.op, problem.direction, problem.heads, problem.dk,
                problem.dv, problem.wireType,  algorithm,     blocks};
  const std::lock_guard lock(mutex_);
  const auto known = chosen_.find(key);
  if (known != chosen_.end()) return known->second;
  if (chosen_.size() >= kMostShapes) chosen_.clear();
  return chosen_[key] = chooseScan(estimates(problem, blocks), algorithm);
}

}  // namespace seqpar
