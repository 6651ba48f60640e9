// CHAIN between two ranks that can read each other's memory: large states are read in place, with one copy instead of
// two through messages.
#pragma once

#include "scan/affine/affine.h"
#include "scan/order.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Whether position 0 first sends the address of its state. Both ends agree.
bool offersInPlace(const ScanProblem& problem, const ScanOrder& order, const Mailbox& mail);
/// For a problem between `positions` positions; `readable`: a pair can read each other's memory.
bool offersInPlace(const ScanProblem& problem, int positions, bool readable);

/// The scan of such a pair, if position 0 can send its state in place: writes prefix and total. Returns false if
/// nothing was written; then messages must follow.
bool scanInPlace(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail);

}  // namespace seqpar
