// From which size on the copy engines of a GPU move a ring's tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace seqpar {

/// Bytes of a step from which on copies take about as long as kernels on an idle GPU, and less from twice this size on;
/// kernels also take SMs from computation. Each further tensor may need a separate copy, with its launch overhead.
inline std::size_t leastBytesForCopyEngines(const std::vector<std::size_t>& mostBytes) {
  constexpr std::size_t kKilo = 1024, kLeastBytes = 2048 * kKilo, kPerTensor = 256 * kKilo;
  const auto empty = std::count(mostBytes.begin(), mostBytes.end(), std::size_t{0});
  const auto tensors = mostBytes.size() - static_cast<std::size_t>(empty);
  return kLeastBytes + (std::max<std::size_t>(tensors, 1) - 1) * kPerTensor;
}

inline bool copyEnginesPay(const std::vector<std::size_t>& mostBytes) {
  const auto all = std::accumulate(mostBytes.begin(), mostBytes.end(), std::size_t{0});
  return all >= leastBytesForCopyEngines(mostBytes);
}

}  // namespace seqpar
