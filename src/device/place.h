// Where ranks compute, to find those that share a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/windows.h"

namespace seqpar {

struct Place {
  std::uint64_t process = processToken();
  int device = 0;
  int blocks = 0;  ///< that the device holds at once
  int multiprocessors = 0;
  bool operator==(const Place&) const = default;
};

/// The first two ranks at a place that several ranks share, for errors.
inline std::string sharersOf(const std::vector<Place>& all, const Place& place) {
  const auto first = std::find(all.begin(), all.end(), place);
  const auto second = std::find(first + 1, all.end(), place);
  return concat("ranks ", first - all.begin(), " and ", second - all.begin(), " share device ", place.device,
                " in one process");
}

}  // namespace seqpar
