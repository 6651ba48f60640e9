// Halos: the tokens beside a shard that its neighbors have, over as many neighbors as it takes.
#pragma once

#include <cstddef>
#include <vector>

#include "exchange/shards.h"

namespace seqpar {

struct Halo {
  std::size_t left = 0;   ///< tokens before the shard
  std::size_t right = 0;  ///< tokens behind it
  bool periodic = false;  ///< the sequence's last token is followed by its first
};

/// Buffers 0 and 1 of the halo's side: [outer][left][inner] and [outer][right][inner].
enum HaloSide : int { kLeft = 0, kRight = 1 };

struct HaloRoute {
  Route route;                       ///< from the shard (send buffer 0) to the two halos (receive buffers)
  std::vector<StridedRegion> zeros;  ///< of the halos: what lies beyond the ends of the sequence
};

HaloRoute haloRoute(const Shards& shards, const Halo& halo, std::size_t member);

/// The adjoint: adds the halos (send buffers) to the shards (receive buffer 0) that they are copies of; after what
/// stands there, in the order of the members, of one member left before right.
Reduction haloAdjoint(const Shards& shards, const Halo& halo, std::size_t member);

}  // namespace seqpar
