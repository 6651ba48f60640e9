// Cost model of the algorithms that pass tensors around a ring.
#pragma once

#include "attn/softmax/cost.h"

namespace seqpar::attn {

/// One pass of tensors around the ring, concurrent with the blocks; sums of gradients follow one hop later.
struct RingTrip {
  int inner = 1;         ///< ranks of an inner ring
  bool queries = false;  ///< the tensors belong to queries, otherwise to keys
  bool backward = false;
  double inputBytes = 0, sumBytes = 0;
  double late = 0;  ///< the share of the first block that runs while the sums return
};

/// The largest number of tokens that a rank sends around the ring.
double mostSent(const Problem& problem, bool queries);
/// The bytes that a rank sends in a trip; the mean of the ranks, because some send nothing.
double tripBytes(const CostModel& model, const RingTrip& trip);
Estimate estimateTrips(const CostModel& model, const RingTrip& forward, const RingTrip& backward);

/// Keys and values around rings of `inner` ranks; backward also the sums of their gradients.
RingTrip keysForward(const CostModel& model, int inner);
RingTrip keysBackward(const CostModel& model, int inner);
/// Queries, the gradients of their outputs, and the sums of their own gradients.
RingTrip queriesBackward(const CostModel& model);

}  // namespace seqpar::attn
