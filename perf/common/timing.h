// How one row of a table is timed.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "group.h"
#include "settings.h"

namespace seqpar::perf {

/// What a row measures, in one of its two forms (out of place, in place).
struct Work {
  std::function<void()> prepare;   ///< inputs as at first, outputs spoilt; before each loop
  std::function<void()> run;       ///< one operation; may leave work on a stream
  std::function<void()> finish;    ///< waits for what run() left; empty: waits for the session's stream, if any
  std::function<size_t()> wrong;   ///< number of wrong output elements of the latest operation
  bool repeatable = true;          ///< false: an operation changes its input, so the check needs a run of its own
  bool takesPart = true;           ///< false: this rank only watches, and its time does not count
  double timesPerIteration = 1.0;  ///< results an operation gives, e.g. 2 for both ways of a ping-pong
};

/// The iterations of all loops, one by one.
struct IterationTimes {
  std::vector<double> slowest;              ///< us, over the ranks
  std::vector<std::vector<double>> ofRank;  ///< us; only of ranks that take part
  std::vector<double> counted;              ///< `slowest` without those that -K leaves out
};

/// Times in us of one operation. Those that were not measured are NaN.
struct Timing {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double us = kNone;
  std::optional<IterationTimes> each;  ///< with -I
  size_t wrong = 0;                    ///< over all ranks
  bool checked = false;
  int iterations = 0;  ///< of each loop
};

/// Collective: the time of the barrier between iterations where it is part of what is measured, and so to be
/// subtracted; else 0.
double barrierUs(Group& group, const Settings& settings);

/// Collective. Times all `works`, in rounds of one loop each, so that a disturbance of the machine does not hit one of
/// them alone. `progress` is called after each loop.
std::vector<Timing> measure(std::span<Work> works, Group& group, const Settings& settings,
                            const std::function<void()>& progress);

}  // namespace seqpar::perf
