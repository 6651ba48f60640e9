#include "base/ticks.h"

#include <fstream>
#include <limits>
#include <string>

namespace seqpar {
namespace {

bool systemCountsTicks() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  return static_cast<bool>(file >> source) && source == "tsc";
#else
  return false;
#endif
}

std::int64_t clockNow() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Both clocks at one time: the closest of several readings, since the thread may be preempted between two.
struct Moment {
  Moment() noexcept {
    constexpr int kReadings = 8;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < kReadings; ++i) {
      const std::int64_t before = clockNow();
      const std::int64_t read = ticksNow();
      const std::int64_t took = clockNow() - before;
      if (took >= least) continue;
      least = took;
      nanoseconds = before + took / 2;
      ticks = read;
    }
  }

  std::int64_t nanoseconds = 0, ticks = 0;
};

}  // namespace

const bool kCountsTicks = systemCountsTicks();

namespace {
const Moment loaded;  ///< when the library was loaded
}

std::int64_t nanosecondsAt(std::int64_t ticks) noexcept {
  if (!kCountsTicks) return ticks;
  const Moment now;
  const double each = now.ticks == loaded.ticks ? 0
                                                : static_cast<double>(now.nanoseconds - loaded.nanoseconds) /
                                                      static_cast<double>(now.ticks - loaded.ticks);
  // Relative to now: most queries are about recent times, so the rounding error is small.
  return now.nanoseconds - static_cast<std::int64_t>(static_cast<double>(now.ticks - ticks) * each);
}

}  // namespace seqpar
