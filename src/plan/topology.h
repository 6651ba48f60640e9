// Which ranks share a node or a process, what processors they run on, and how many share one.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/allgather.h"

namespace seqpar {

struct Topology {
  std::vector<std::string> hostIds;  ///< one a rank
  std::vector<int> nodes;            ///< node of each rank, numbered in order of the first rank
  std::vector<int> processes;        ///< process of each rank, numbered likewise
  std::vector<std::string> models;   ///< processor model of each node
  int nodeCount = 1;
  double contention = 1;        ///< ranks for each processor of the fullest node, at least 1
  double processorsOfRank = 1;  ///< processors for each rank of the fullest node
};

/// Collective.
Topology discoverTopology(Allgather& control, const std::string& hostId);

}  // namespace seqpar
