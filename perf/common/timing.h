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

/// The work that a row measures, in one of its two forms (out of place, in place).
struct Work {
  std::function<void()> prepare;   ///< restores inputs and invalidates outputs; before each loop
  std::function<void()> run;       ///< one operation; may leave work on a stream
  std::function<void()> finish;    ///< waits for the work of run(); empty: waits for the session's stream, if any
  std::function<size_t()> wrong;   ///< number of wrong output elements of the latest operation
  bool repeatable = true;          ///< false: an operation changes its input, so the check needs a separate run
  bool takesPart = true;           ///< false: this rank is idle, and its time does not count
  double timesPerIteration = 1.0;  ///< operations per iteration, for example 2 for both ways of a ping-pong
};

/// The iterations of all loops, one by one.
struct IterationTimes {
  std::vector<double> slowest;              ///< us, over the ranks
  std::vector<std::vector<double>> ofRank;  ///< us; only of ranks that take part
  std::vector<double> counted;              ///< `slowest` without the iterations that -K skips
};

/// Times in us per operation. NaN: not measured.
struct Timing {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double us = kNone;
  std::optional<IterationTimes> each;  ///< with -I
  size_t wrong = 0;                    ///< over all ranks
  bool checked = false;
  int iterations = 0;  ///< of each loop
};

/// Collective: the time of the barrier between iterations if the measured times include it and it must be subtracted;
/// else 0.
double barrierUs(Group& group, const Settings& settings);

/// Collective. Times all `works`, in rounds of one loop each, so that a disturbance of the machine affects all of them.
/// Calls `progress` after each loop.
std::vector<Timing> measure(std::span<Work> works, Group& group, const Settings& settings,
                            const std::function<void()>& progress);

}  // namespace seqpar::perf
