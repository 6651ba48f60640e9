// The measured constants of the cost models: what a message costs on this communicator, as it is placed and loaded now.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "bootstrap/allgather.h"
#include "plan/topology.h"
#include "transport/mailbox.h"

namespace seqpar {

/// One class of links. With all ranks of the class at work at the same time, so that ranks that share a processor
/// count.
struct Link {
  double alpha = 0;           ///< seconds from a rank's message to the next rank's, empty message
  double secondsPerByte = 0;  ///< of a rank that forwards a stream: 1 / B
  double overhead = 0;        ///< seconds for one more block in a stream: o
};

/// What was measured along a row of ranks, in seconds. A rank that loses its processor for a moment makes any of the
/// three longer, none shorter: so the least of each counts, and constants are made of these alone.
struct LinkTimes {
  static constexpr int kEmptyBlocks = 64, kFullBlocks = 16;
  static constexpr size_t kBlock = size_t{64} << 10;

  double hop = kNever;    ///< of an empty message from a rank to the next
  double empty = kNever;  ///< of kEmptyBlocks empty blocks down the row, and word of it back
  double full = kNever;   ///< the same of kFullBlocks blocks of kBlock bytes

  void keepLeast(const LinkTimes& other);
  Link link(size_t ranks) const;

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
};

struct LinkModel {
  Link node;     ///< between ranks of one node (all ranks, if there is one node)
  Link network;  ///< between nodes; equals `node` if there is one node
  double contention = 1;
  Link process;             ///< between ranks of one process; equals `node` where no process has several ranks
  bool remembered = false;  ///< from the tuning cache, not measured now
};

/// Collective: sends empty messages round a ring, then streams empty and large blocks along a chain: over the ranks of
/// the fullest node, over the first ranks of all nodes, and over the ranks of the fullest process, unless these are the
/// same ranks. All ranks get the same figures. Takes a few milliseconds.
LinkModel measureLinks(Mailbox& mail, Allgather& control, const Topology& topology);

/// Collective: what rank 0's tuning cache knows of this placement, or else what measureLinks() finds, which that cache
/// then remembers. The same on all ranks.
LinkModel planLinks(Mailbox& mail, Allgather& control, const Topology& topology, const std::string& transport);

}  // namespace seqpar
