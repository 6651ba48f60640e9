// How an algorithm cuts the state into blocks so that its messages fit.
#pragma once

#include <vector>

#include "scan/algorithms.h"

namespace seqpar {

/// The number of shards that HIER cuts a block into: the size of the smallest node. InvalidUsage if the positions of a
/// node are not neighbors.
int hierRails(const ScanOrder& order);

/// The blocks of an algorithm whose traffic is not Bytes: at least `blocks` of them, if the state can be cut so finely,
/// and as many as it takes for messages to stay within maxMessage() and for what a rank publishes of one block to stay
/// within window() / 2. The same on all ranks. None if there are no elements. InvalidUsage if the finest blocks do not
/// fit.
std::vector<Block> cutScan(seqparScanAlgorithm_t algorithm, const Affine& affine, const ScanProblem& problem,
                           const ScanOrder& order, const Mailbox& mail, size_t blocks);

}  // namespace seqpar
