// A clock for values noted in every call: reading it takes a third of the monotonic clock's time.
#pragma once

#include <chrono>
#include <cstdint>

namespace seqpar {

/// True if the kernel's clock source is the processor's counter, which then runs evenly on all processors.
extern const bool kCountsTicks;

/// Later calls return no smaller value, on any thread. Never 0.
inline std::int64_t ticksNow() noexcept {
#if defined(__x86_64__)
  if (kCountsTicks) return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#endif
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Time of the monotonic clock in ns at a ticksNow() value of this process.
std::int64_t nanosecondsAt(std::int64_t ticks) noexcept;

}  // namespace seqpar
