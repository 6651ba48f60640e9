// Waits in tests. Durations depend on the load of the machine, so no test is decided by them: a wait that must not end
// by a timeout gets one that outlasts the test, and a timeout that must end a wait has no upper bound. The test runner
// ends tests that hang.
#pragma once

#include <chrono>
#include <string>

namespace seqpar::test {

/// A timeout that plays no part: longer than the test runner lets any test run.
constexpr int kNoTimeoutMs = 3600000;
constexpr std::chrono::milliseconds kNoTimeout{kNoTimeoutMs};

/// For properties of ranks that are faster than their timeout: runs attempt(timeout in ms), which returns an error text
/// or "", with timeouts from `first` that grow fourfold until there is no error. On a busy machine, ranks are silent
/// for a while for reasons outside of the library; an error of the library occurs with every timeout. Returns the last
/// attempt's error.
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
