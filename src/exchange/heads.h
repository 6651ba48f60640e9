// From shards of the sequence with all heads to shards of the heads with the whole sequence, and back (Ulysses).
#pragma once

#include <cstddef>
#include <vector>

#include "exchange/reduction.h"
#include "exchange/route.h"

namespace seqpar {

struct HeadRange {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// The key and value heads that a member needs. `queryHeads`, a multiple of `heads`, are dealt in consecutive runs, one
/// more to the first members if they do not divide evenly; a member gets the heads that its queries use. With fewer
/// heads than members, several members own one head.
HeadRange headsOf(std::size_t heads, std::size_t queryHeads, std::size_t members, std::size_t member);

/// Arrays [batch][tokens of the member][heads][headBytes] ("sequence") and [batch][all tokens][heads of the
/// member][headBytes] ("head"), row-major, over the members of a group.
struct HeadShards {
  std::size_t batch = 1;
  std::vector<std::size_t> tokens;  ///< of each member, in the order of the sequence
  std::size_t heads = 0;
  std::vector<HeadRange> range;  ///< heads of each member; together they cover all heads
  std::size_t headBytes = 0;
  std::vector<int> ranks;  ///< of each member, in the communicator

  std::size_t members() const { return ranks.size(); }
  /// True if a head has more than one owner.
  bool replicated() const;
};

/// Send buffer 0 is the sequence array, receive buffer 0 the head array.
Route sequenceToHeads(const HeadShards& shards, std::size_t member);

/// The inverse, for heads with one owner each.
Route headsToSequence(const HeadShards& shards, std::size_t member);

/// The adjoint: sums the values that several members hold for a head, in the order of the members.
Reduction headsToSequenceSum(const HeadShards& shards, std::size_t member);

}  // namespace seqpar
