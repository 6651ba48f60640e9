// The ranks of a scan, in scan order.
#pragma once

#include <span>
#include <vector>

#include "scan/affine/affine.h"
#include "seqpar/scan.h"

namespace seqpar {

struct ScanOrder {
  std::span<const int> ranks;    ///< ranks[p] is the rank at position p
  int position = 0;              ///< this rank's
  std::span<const int> nodes;    ///< nodes[p] is the node at position p
  std::span<const Block> cut{};  ///< result of cutScan() for this scan; empty: unknown
  int size() const { return static_cast<int>(ranks.size()); }
};

/// The rank at every position.
std::vector<int> scanRanks(int size, seqparDirection_t direction);

/// The node of every position; nodes[rank] is a rank's node.
std::vector<int> scanNodes(const std::vector<int>& nodes, seqparDirection_t direction);

/// The position of a rank.
int scanPosition(int rank, int size, seqparDirection_t direction);

}  // namespace seqpar
