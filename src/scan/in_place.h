// CHAIN between two ranks that can read each other's memory: large states are read in place, with one copy instead of
// two through messages.
#pragma once

#include "scan/affine/affine.h"
#include "scan/order.h"
#include "transport/mailbox.h"

namespace seqpar {

/// How two ranks reach each other's memory.
struct PairAccess {
  PairAccess() = default;
  PairAccess(const Mailbox& mail, int peer) : readable(mail.readable(peer)), mapped(mail.mapped(peer)) {}

  bool readable = false;  ///< any memory, by Mailbox::read()
  bool mapped = false;    ///< buffers of seqparMemAlloc()
};

/// Whether position 0 first sends the address of its state. Both ends agree.
bool offersInPlace(const ScanProblem& problem, const ScanOrder& order, const Mailbox& mail);
/// For a problem between `positions` positions.
bool offersInPlace(const ScanProblem& problem, int positions, PairAccess access);

/// The scan of such a pair, if position 0 can send its state in place: writes prefix and total. Returns false if
/// nothing was written; then messages must follow.
bool scanInPlace(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail);

}  // namespace seqpar
