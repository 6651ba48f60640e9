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

/// Which of `heads` a member has when `queryHeads`, a multiple of them, are dealt out in consecutive runs, the first
/// members getting one more where they do not divide: those that its queries use. With fewer heads than members several
/// members have the same head.
HeadRange headsOf(std::size_t heads, std::size_t queryHeads, std::size_t members, std::size_t member);

/// Arrays [batch][tokens of the member][heads][headBytes] ("sequence") and [batch][all tokens][heads of the
/// member][headBytes] ("head"), row-major, over the members of a group.
struct HeadShards {
  std::size_t batch = 1;
  std::vector<std::size_t> tokens;  ///< of each member, in the order of the sequence
  std::size_t heads = 0;
  std::vector<HeadRange> range;  ///< heads of each member; together they are all heads
  std::size_t headBytes = 0;
  std::vector<int> ranks;  ///< of each member, in the communicator

  std::size_t members() const { return ranks.size(); }
  /// True if a head has more than one owner.
  bool replicated() const;
};

/// Send buffer 0 is the sequence array, receive buffer 0 the head array.
Route sequenceToHeads(const HeadShards& shards, std::size_t member);

/// Its inverse, for heads that have one owner each.
Route headsToSequence(const HeadShards& shards, std::size_t member);

/// Its adjoint: what several members have for a head is added, in the order of the members.
Reduction headsToSequenceSum(const HeadShards& shards, std::size_t member);

}  // namespace seqpar
