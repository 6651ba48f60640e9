// The accelerators of this machine, for host communicators.
#pragma once

#include <cstdint>
#include <string>

#include "base/thread_variable.h"
#include "base/ticks.h"

namespace seqpar {

/// As text: "built without CUDA", "CUDA: no driver", "2 GPUs, NCCL 2.28.9". Determined at the first call, which in a
/// build with CUDA initializes the CUDA driver if there is one.
std::string deviceReport();

/// True for memory that the CPU must not access: CUDA device memory and arrays. Managed memory and pinned host memory
/// are host memory. Works in every build and loads no library: if no part of the process uses CUDA, it is false. `now`
/// is a recent ticksNow(): a thread looks for a loaded driver at most every 0.1 ms.
bool isDevicePointer(const void* pointer, std::int64_t now) noexcept;

/// The latest search of a thread that found no CUDA driver. It stays valid for about 0.1 ms: the time between loading
/// the driver and the first device pointer is many times longer.
class RecentSearch {
 public:
  static bool notFound(std::int64_t now) noexcept { return at_ != 0 && now - at_ < kTicks; }
  static void keep(std::int64_t now) noexcept { at_ = now; }

 private:
  static constexpr std::int64_t kTicks = std::int64_t{1} << 18;
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit std::int64_t at_ = 0;
};

inline bool isDevicePointer(const void* pointer) noexcept {
  return isDevicePointer(pointer, ticksNow());
}

/// True for all memory that CUDA manages: device, managed, and pinned host memory.
bool isKnownToDriver(const void* pointer) noexcept;

}  // namespace seqpar
