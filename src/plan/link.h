// The measured constants of the cost models: the cost of a message on this communicator, with its current placement and
// load.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "bootstrap/allgather.h"
#include "plan/topology.h"
#include "transport/mailbox.h"

namespace seqpar {

/// One class of links, measured with all ranks of the class active at the same time, so contention for processors is
/// included.
struct Link {
  double alpha = 0;           ///< seconds for an empty message from a rank to the next
  double secondsPerByte = 0;  ///< on a rank that forwards a stream: 1 / B
  double overhead = 0;        ///< seconds for one more block in a stream: o
};

/// Times measured along a row of ranks, in seconds. Preemption of a rank can only increase them, so the minimum of each
/// is kept, and the constants are computed from the minima.
struct LinkTimes {
  static constexpr int kEmptyBlocks = 64, kFullBlocks = 16;
  static constexpr size_t kBlock = size_t{64} << 10;

  double hop = kNever;    ///< an empty message from a rank to the next
  double empty = kNever;  ///< kEmptyBlocks empty blocks down the row, and the receipt
  double full = kNever;   ///< kFullBlocks blocks of kBlock bytes, and the receipt

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

/// Collective: sends empty messages around a ring, then streams empty and large blocks along a chain. Runs over the
/// ranks of the fullest node, the first ranks of all nodes, and the ranks of the fullest process, except where these
/// are the same ranks. All ranks get equal constants. Takes a few milliseconds.
LinkModel measureLinks(Mailbox& mail, Allgather& control, const Topology& topology);

/// Collective: the constants that rank 0's tuning cache holds for this placement; otherwise measures them with
/// measureLinks() and stores them in that cache. Returns equal values on all ranks.
LinkModel planLinks(Mailbox& mail, Allgather& control, const Topology& topology, const std::string& transport);

}  // namespace seqpar
