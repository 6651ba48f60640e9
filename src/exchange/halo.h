// Halos: the tokens next to a shard that its neighbors hold, over as many neighbors as needed.
#pragma once

#include <cstddef>
#include <vector>

#include "exchange/shards.h"

namespace seqpar {

struct Halo {
  std::size_t left = 0;   ///< tokens before the shard
  std::size_t right = 0;  ///< tokens after it
  bool periodic = false;  ///< the sequence's last token is followed by its first
};

/// Buffers 0 and 1 of the halo's side: [outer][left][inner] and [outer][right][inner].
enum HaloSide : int { kLeft = 0, kRight = 1 };

struct HaloRoute {
  Route route;                       ///< from the shard (send buffer 0) to the two halos (receive buffers)
  std::vector<StridedRegion> zeros;  ///< of the halos: tokens past the ends of the sequence
};

HaloRoute haloRoute(const Shards& shards, const Halo& halo, std::size_t member);

/// The adjoint: adds the halos (send buffers) to the shards (receive buffer 0) that they copy. The order of addition:
/// the present contents, then the members in order; within a member left before right.
Reduction haloAdjoint(const Shards& shards, const Halo& halo, std::size_t member);

}  // namespace seqpar
