#include "memory_use.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>

namespace seqpar::perf {

std::string memoryUse(Group& group) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const std::array<double, 2> mine{static_cast<double>(usage.ru_maxrss) / 1024,
                                   group.gpu() == nullptr ? 0 : static_cast<double>(gpuMemoryInUse()) / (1 << 20)};
  const std::vector<double> all = group.gather(std::span<const double>(mine));
  std::array<double, 2> most{};
  for (size_t i = 0; i < all.size(); ++i) most[i % 2] = std::max(most[i % 2], all[i]);
  std::array<char, 96> text{};
  if (group.gpu() == nullptr) {
    std::snprintf(text.data(), text.size(), "process %.1f MB at its peak", most[0]);
  } else {
    std::snprintf(text.data(), text.size(), "process %.1f MB at its peak | GPU %.1f MB in use", most[0], most[1]);
  }
  return text.data();
}

size_t memoryInUse(const Group& group) {
  if (group.gpu() != nullptr) return gpuMemoryInUse();
  size_t whole = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> whole >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace seqpar::perf
