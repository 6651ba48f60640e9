#include "scan/order.h"

namespace seqpar {

int scanPosition(int rank, int size, seqparDirection_t direction) {
  return direction == seqparReverse ? size - 1 - rank : rank;
}

// The maps from ranks to positions and from positions to ranks are identical.
std::vector<int> scanRanks(int size, seqparDirection_t direction) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<size_t>(size));
  for (int position = 0; position < size; ++position) ranks.push_back(scanPosition(position, size, direction));
  return ranks;
}

std::vector<int> scanNodes(const std::vector<int>& nodes, seqparDirection_t direction) {
  if (direction == seqparReverse) return {nodes.rbegin(), nodes.rend()};
  return nodes;
}

}  // namespace seqpar
