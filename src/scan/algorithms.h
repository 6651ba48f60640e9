// What the algorithms of All-Scan on hosts have in common. Each is a file of algorithms/, which registry.cpp names.
#pragma once

#include <cstddef>

#include "scan/affine/affine.h"
#include "scan/order.h"
#include "transport/mailbox.h"

namespace seqpar {

/// What the messages of an algorithm hold, which decides how finely a state must be cut for them to fit.
enum class ScanTraffic {
  Bytes,       ///< states, cut anywhere
  States,      ///< a block's state
  Maps,        ///< a block's map
  Shards,      ///< a block's map, cut into one shard a position
  NodeShards,  ///< a block's map, cut into as many shards as the smallest node has positions
};

/// An algorithm on host memory: collective over the mailbox's ranks, leaves prefix and total written. The caller begins
/// and ends the mailbox's operation around it. `blocks` is the number of blocks to aim at; it is raised where messages
/// would not fit the mailbox.
using HostRun = void(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks);

/// True if messages of this kind can be cut so that they fit a mailbox with these limits; where not, the algorithm
/// fails with InvalidUsage. Looks at shape, operator and wire type only.
bool scanFits(ScanTraffic traffic, const ScanProblem& problem, int positions, size_t maxMessage, size_t window);

}  // namespace seqpar
