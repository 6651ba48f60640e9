// How one row of a table is timed.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "launch.h"
#include "settings.h"

namespace seqpar::perf {

/// What a row measures, in one of its two forms (out of place, in place).
struct Work {
  std::function<void()> prepare;   ///< inputs as at first, outputs spoilt; before each loop
  std::function<void()> run;       ///< one iteration; may leave work on a stream
  std::function<void()> finish;    ///< waits for what run() left; empty: waits for the session's stream, if any
  std::function<size_t()> wrong;   ///< number of wrong output elements of the latest iteration
  bool repeatable = true;          ///< false: an iteration changes its input, so the check needs a run of its own
  bool takesPart = true;           ///< false: this rank only watches, and its time does not count
  double timesPerIteration = 1.0;  ///< results an iteration gives, e.g. 2 for both ways of a ping-pong
};

/// Times in us of one iteration. Those that were not measured are NaN.
struct Timing {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double us = kNone, minUs = kNone, maxUs = kNone, p99Us = kNone;
  size_t wrong = 0;  ///< over all ranks
  bool checked = false;
  int iterations = 0;  ///< of each loop
};

/// One number for the ranks' numbers; NaN entries do not count.
double combine(std::span<const double> ranks, Average how);
double median(std::vector<double> values);
/// The least value that at least `share` of the values do not exceed.
double quantile(std::vector<double> values, double share);

/// Collective: the time of the barrier between iterations where it is part of what is measured, and so to be
/// subtracted; else 0.
double barrierUs(Group& group, const Settings& settings);

/// Collective. Times all `works`, in rounds of one loop each, so that a disturbance of the machine does not hit one of
/// them alone. `progress` is called after each loop.
std::vector<Timing> measure(std::span<Work> works, Group& group, const Settings& settings,
                            const std::function<void()>& progress);

}  // namespace seqpar::perf
