// Cache of checked and prepared seqparAllScan() calls.
#pragma once

#include <memory>

#include "api/known_calls.h"
#include "scan/backend.h"

namespace seqpar {

/// A call without flags that has elements, on a communicator of host memory.
struct ScanCall {
  using Key = seqparAllScanParams_t;
  Key key;
  ScanProblem problem;  ///< checked, without arrays
  const CallValues* values = nullptr;
  const ScanAlgorithm* algorithm;
  std::shared_ptr<PreparedScan> prepared;
  uint64_t id = 0;

  static bool matches(const Key& a, const Key& b) noexcept {
    return a.dk == b.dk && a.dv == b.dv && a.heads == b.heads && a.direction == b.direction && a.op == b.op &&
           a.stateType == b.stateType && a.wireType == b.wireType && a.decayForm == b.decayForm &&
           a.sequences == b.sequences && a.flags == b.flags && a.algorithm == b.algorithm && a.blocks == b.blocks &&
           a.bounded == b.bounded;
  }
};

}  // namespace seqpar
