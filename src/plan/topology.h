// Which ranks share a node or a process, which processors they run on, and how many ranks share a processor.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/allgather.h"

namespace seqpar {

struct Topology {
  std::vector<std::string> hostIds;  ///< one a rank
  std::vector<int> nodes;            ///< node of each rank, numbered in order of their first ranks
  std::vector<int> processes;        ///< process of each rank, numbered in order of their first ranks
  std::vector<std::string> models;   ///< processor model of each node
  int nodeCount = 1;
  double contention = 1;     ///< ranks per processor of the fullest node, at least 1
  double coresPerRank = 1;   ///< processors per rank of the fullest node
  std::vector<int> threads;  ///< processorShares() of each rank
};

/// Collective.
Topology discoverTopology(Allgather& control, const std::string& hostId);

}  // namespace seqpar
