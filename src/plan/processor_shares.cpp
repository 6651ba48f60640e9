#include "plan/processor_shares.h"

#include <algorithm>
#include <array>
#include <map>

namespace seqpar {

std::vector<int> processorShares(std::span<const cpu_set_t> allowed, std::span<const int> nodes) {
  std::map<int, std::array<int, CPU_SETSIZE>> users;  // of each node: the ranks that may use a processor
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    auto& counts = users.try_emplace(nodes[rank]).first->second;
    for (size_t p = 0; p < CPU_SETSIZE; ++p) counts[p] += CPU_ISSET(p, &allowed[rank]) ? 1 : 0;
  }
  std::vector<int> threads;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto& counts = users[nodes[rank]];
    double share = 0;
    for (size_t p = 0; p < CPU_SETSIZE; ++p) {
      if (CPU_ISSET(p, &allowed[rank])) share += 1.0 / counts[p];
    }
    // Less than any fraction of a share, more than the rounding of 1024 additions: six sixths are one.
    constexpr double kRounding = 1e-9;
    threads.push_back(std::max(1, static_cast<int>(share + kRounding)));
  }
  return threads;
}

}  // namespace seqpar
