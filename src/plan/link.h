// The measured constants of the cost models: what a message costs on this communicator, as it is placed and loaded now.
#pragma once

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
