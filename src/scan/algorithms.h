// Declarations that the algorithms of All-Scan on hosts share. Each is a file of algorithms/ that registry.cpp names.
#pragma once

#include <cstddef>

#include "scan/affine/affine.h"
#include "scan/order.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Content of an algorithm's messages; determines how finely a state must be divided for them to fit.
enum class ScanTraffic {
  Bytes,       ///< states, divided anywhere
  States,      ///< a block's state
  Maps,        ///< a block's map
  Shards,      ///< a block's map, divided into one shard per position
  NodeShards,  ///< a block's map, divided into as many shards as the smallest node has positions
};

/// An algorithm on host memory: collective over the mailbox's ranks; writes prefix and total. The caller opens and
/// closes the mailbox's operation around it. `blocks` is the preferred number of blocks; it is raised if messages would
/// not fit the mailbox.
using HostRun = void(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, size_t blocks);

/// True if messages of this kind can be divided so that they fit a mailbox with these limits; otherwise the algorithm
/// fails with InvalidUsage. Depends only on shape, operator and wire type.
bool scanFits(ScanTraffic traffic, const ScanProblem& problem, int positions, size_t maxMessage, size_t window);

}  // namespace seqpar
