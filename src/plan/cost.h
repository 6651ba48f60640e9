// Predicted times of data movement from the measured constants: alpha-beta forms. Pure functions, with equal results on
// all ranks. Times are seconds of the slowest rank, with all ranks of the group active.
#pragma once

#include <span>

#include "plan/link.h"
#include "plan/topology.h"

namespace seqpar {

/// The slowest link of a ring: every rank sends to the next in the list, the last to the first. Ranks of a node that
/// all send out of it share the node's link to the network.
Link linkOfRing(const LinkModel& model, const Topology& topology, std::span<const int> ranks);
/// The slowest link of a group where every rank sends to every other.
Link linkOfGroup(const LinkModel& model, const Topology& topology, std::span<const int> ranks);

/// Every rank sends `bytes` to one rank and receives `bytes` from another: a step of a ring or of a mesh.
double shiftSeconds(const Link& link, double contention, double bytes);
/// `steps` shifts, one after the other.
double ringSeconds(const Link& link, double contention, double bytes, int steps);
/// Every rank sends its `bytes` to all `ranks` - 1 others.
double allGatherSeconds(const Link& link, double contention, double bytes, int ranks);
/// Every rank gets the sum of `ranks` contributions of `bytes`, including its own.
double reduceScatterSeconds(const Link& link, double contention, double bytes, int ranks);
/// Every rank holds `bytes` and sends 1 / `ranks` of them to each rank; its own part is copied.
double allToAllSeconds(const Link& link, double contention, double bytes, int ranks);

}  // namespace seqpar
