// The choice of algorithm for a communicator's scans, remembered by shape: a lookup is cheaper than the cost models,
// which matters for small scans.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "comm/communicator.h"
#include "scan/backend.h"

namespace seqpar {

class ScanPlanner {
 public:
  /// Collective on a device communicator: measures and records its links. `comm` must outlive the planner.
  explicit ScanPlanner(Communicator& comm);

  /// Predicted times of all algorithms, fastest first. `blocks` 0: the best for each.
  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const;

  /// The estimate for `algorithm`; the best one for Auto.
  seqparScanEstimate_t choose(const ScanProblem& problem, int algorithm, int blocks);

  /// Selects from `all`: for Auto the fastest algorithm without products that may overflow.
  seqparScanEstimate_t choice(std::vector<seqparScanEstimate_t> all, const ScanProblem& problem, int algorithm) const;

  /// The backend that runs the communicator's scans.
  ScanBackend& backend() const { return *backend_; }

 private:
  using Key = std::tuple<int, int, size_t, size_t, size_t, int, int, int, bool>;

  std::unique_ptr<ScanBackend> backend_;
  std::mutex mutex_;
  std::map<Key, seqparScanEstimate_t> chosen_;
};

}  // namespace seqpar
