// Where ranks compute, to find those that share a GPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/windows.h"

namespace seqpar {

struct Place {
  std::uint64_t process = processToken();
  std::array<char, 16> uuid{};  ///< of the GPU; processes may number GPUs differently
  int device = 0;
  int blocks = 0;  ///< that the device holds at once
  int multiprocessors = 0;
  int arch = 0;  ///< compute capability, such as 90 for 9.0
};

inline bool shareGpu(const Place& one, const Place& other) {
  return one.uuid == other.uuid || (one.process == other.process && one.device == other.device);
}

/// Whether kernels of both may be resident at once: the driver runs kernels of different processes in turn.
inline bool shareSms(const Place& one, const Place& other) {
  return one.process == other.process && one.device == other.device;
}

/// The minimum of each value.
inline GpuKind slowestOf(const std::vector<Place>& all) {
  GpuKind slowest{all.front().arch, all.front().multiprocessors};
  for (const Place& place : all) {
    slowest = {std::min(slowest.arch, place.arch), std::min(slowest.sms, place.multiprocessors)};
  }
  return slowest;
}

/// The first two ranks that share a GPU, for errors; "" if none do.
inline std::string sharersOf(const std::vector<Place>& all) {
  for (std::size_t second = 1; second < all.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (!shareGpu(all[first], all[second])) continue;
      if (!shareSms(all[first], all[second])) return concat("ranks ", first, " and ", second, " share a GPU");
      return concat("ranks ", first, " and ", second, " share device ", all[first].device, " in one process");
    }
  }
  return "";
}

}  // namespace seqpar
