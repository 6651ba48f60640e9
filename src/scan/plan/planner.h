// The choice of algorithm for a communicator's scans, remembered by shape: models are cheap, but not as cheap as small
// scans.
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
  /// Collective on a device communicator, whose links it measures and records. `comm` must outlive the planner.
  explicit ScanPlanner(Communicator& comm);

  /// Predicted times of all algorithms, fastest first. `blocks` 0: the best for each.
  std::vector<seqparScanEstimate_t> estimates(const ScanProblem& problem, int blocks) const;

  /// The estimate for `algorithm`; the best one for Auto.
  seqparScanEstimate_t choose(const ScanProblem& problem, int algorithm, int blocks);

  /// Where the communicator's scans run.
  ScanBackend& backend() const { return *backend_; }

 private:
  using Key = std::tuple<int, int, size_t, size_t, size_t, int, int, int>;

  std::unique_ptr<ScanBackend> backend_;
  std::mutex mutex_;
  std::map<Key, seqparScanEstimate_t> chosen_;
};

}  // namespace seqpar
