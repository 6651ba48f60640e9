// Time in tests. How long something takes depends on what else the machine does, so no test is decided by it: a wait
// that must not end by a timeout is given one that outlasts the test, and a timeout that must end a wait has no upper
// bound. What hangs is ended by the test runner.
#pragma once

#include <chrono>
#include <string>

namespace seqpar::test {

/// A timeout that plays no part: longer than the test runner lets any test run.
constexpr int kNoTimeoutMs = 3600000;
constexpr std::chrono::milliseconds kNoTimeout{kNoTimeoutMs};

/// For what holds of ranks that are faster than their timeout: runs attempt(timeout in ms), which returns what is
/// wrong, "" for nothing, with timeouts from `first` that grow fourfold until nothing is. On a busy machine, ranks are
/// silent for a while whatever the library does; what is wrong with the library is wrong with every timeout. Returns
/// what was wrong with the last one.
template <typename Attempt>
std::string withGrowingTimeout(int first, Attempt&& attempt) {
  constexpr int kAttempts = 4;
  std::string wrong;
  for (int i = 0, timeoutMs = first; i < kAttempts; ++i, timeoutMs *= 4) {
    wrong = attempt(timeoutMs);
    if (wrong.empty()) break;
    wrong = "timeout " + std::to_string(timeoutMs) + " ms: " + wrong;
  }
  return wrong;
}

}  // namespace seqpar::test
