// Arrays that are sharded along their tokens: gathering all shards, and summing all ranks' arrays into shards.
#pragma once

#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "exchange/reduction.h"
#include "exchange/route.h"

namespace seqpar {

/// Tokens of all members before `member`.
inline std::size_t tokensBefore(std::span<const std::size_t> tokens, std::size_t member) {
  return std::accumulate(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(member), std::size_t{0});
}

/// An array [outer][tokens][inner], row-major, with its tokens distributed over the members of a group.
struct Shards {
  std::size_t outer = 1;
  std::vector<std::size_t> tokens;  ///< of each member, in the order of the shards
  std::size_t inner = 0;            ///< bytes
  std::vector<int> ranks;           ///< of each member, in the communicator
  int ctas = 0;                     ///< Route::ctas

  std::size_t members() const { return ranks.size(); }
  std::size_t first(std::size_t member) const { return tokensBefore(tokens, member); }
  std::size_t total() const { return first(members()); }
  /// The shard of a member inside the whole array.
  StridedRegion inWhole(std::size_t member) const;
  /// Tokens [from, from + count) of an array [outer][of][inner] in the call's buffer number `buffer`.
  StridedRegion part(int buffer, std::size_t from, std::size_t count, std::size_t of) const;
};

/// Every member's shard (send buffer 0) to every member's whole array (receive buffer 0).
Route gatherRoute(const Shards& shards, std::size_t member);

/// The sum of all members' whole arrays (send buffer 0), added in the order of the members; each member receives its
/// shard (receive buffer 0).
Reduction scatterSum(const Shards& shards, std::size_t member);

}  // namespace seqpar
