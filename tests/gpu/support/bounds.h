// Bounds of waits in GPU tests, where an endless wait would occupy a device until the test runner ends it. Durations
// depend on the load of the machine, so bounds are scaled by the present load: a test passes a bound that is ample on
// an idle machine.
#pragma once

#include <ctime>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace seqpar::test {

/// The slowdown of threads relative to an idle machine, at least 1: elapsed time over processor time of some work on
/// every processor, measured once per process. Children of a fork inherit it if the parent has measured it: ranks must
/// not have different timeouts.
inline double slowness() {
  static const double measured = [] {
    using Clock = std::chrono::steady_clock;
    constexpr double kWorkSeconds = 0.05;  // a few slices of the scheduler's
    const auto cpuTime = [] {
      timespec now{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    };
    std::vector<double> found(std::max(1U, std::thread::hardware_concurrency()), 1.0);
    std::vector<std::thread> threads;
    for (double& slow : found) {
      threads.emplace_back([&slow, &cpuTime] {
        const auto begin = Clock::now();
        const double from = cpuTime();
        double used = 0;
        while (used < kWorkSeconds) used = cpuTime() - from;
        slow = std::chrono::duration<double>(Clock::now() - begin).count() / used;
      });
    }
    for (auto& thread : threads) thread.join();
    return std::max(1.0, *std::max_element(found.begin(), found.end()));
  }();
  return measured;
}

/// A bound from `idle`, which is ample on an idle machine, with a margin for load that follows the measurement.
inline std::chrono::milliseconds patience(std::chrono::milliseconds idle) {
  constexpr double kRoom = 2;
  return std::chrono::milliseconds(std::llround(static_cast<double>(idle.count()) * slowness() * kRoom));
}
inline int patienceMs(int idleMs) {
  return static_cast<int>(patience(std::chrono::milliseconds(idleMs)).count());
}
inline std::uint64_t patienceNs(int idleSeconds) {
  return static_cast<std::uint64_t>(patience(std::chrono::seconds(idleSeconds)).count()) * 1000000;
}

}  // namespace seqpar::test
