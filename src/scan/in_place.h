// CHAIN between two ranks that can read each other's memory: large states are read where they lie, one copy in place
// of two through messages.
#pragma once

#include "scan/affine/affine.h"
#include "scan/order.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Whether position 0 says where its state lies before anything else. The same at both ends.
bool offersInPlace(const ScanProblem& problem, const ScanOrder& order, const Mailbox& mail);
/// The same of a problem between `positions` of which the two of a pair can read each other.
bool offersInPlace(const ScanProblem& problem, int positions, bool readable);

/// The scan of such a pair, if what position 0 would send is its state as it lies: then prefix and total are written.
/// False: nothing was, and messages are to follow.
bool scanInPlace(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail);

}  // namespace seqpar
