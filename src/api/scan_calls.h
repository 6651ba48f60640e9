// Cache of checked and prepared seqparAllScan() calls. Checks, the choice of an algorithm and its preparation take
// longer than a small scan.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "scan/backend.h"

namespace seqpar {

/// A call without flags that has elements, on a communicator of host memory.
struct ScanCall {
  seqparAllScanParams_t params;
  ScanProblem problem;  ///< checked, without arrays
  const CallValues* values;
  const ScanAlgorithm* algorithm;
  std::shared_ptr<PreparedScan> prepared;
};

/// The calls of one communicator.
class ScanCalls {
 public:
  /// The call with these parameters, or null. Takes no lock.
  const ScanCall* find(const seqparAllScanParams_t& params) const noexcept;
  /// True if the cache has space and no call with these parameters.
  bool lacks(const seqparAllScanParams_t& params) const noexcept;
  /// Adds a call if lacks().
  void add(ScanCall call);

 private:
  /// Further shapes are checked in every call.
  static constexpr size_t kMost = 64;

  std::array<std::atomic<const ScanCall*>, kMost> calls_{};  ///< filled in order, entries stay
  mutable std::atomic<size_t> latest_{0};                    ///< index of the latest result of find()
  std::mutex adding_;
  std::vector<std::unique_ptr<const ScanCall>> owned_;
};

}  // namespace seqpar
