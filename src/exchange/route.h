// What one rank sends and receives in an exchange, as data. Pure functions make routes (layout, mesh, all-to-all,
// halo, ...); an ExchangeBackend carries them out on host memory or on a GPU and knows nothing of what they mean.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace seqpar {

/// count[0] x count[1] x count[2] runs of contiguous bytes in one of the caller's buffers, row-major in that order.
struct StridedRegion {
  int buffer = 0;          ///< which of the call's send or receive buffers
  std::size_t offset = 0;  ///< bytes from the buffer's begin to the first run
  std::size_t run = 0;     ///< bytes of a run
  std::array<std::size_t, 3> count{1, 1, 1};
  std::array<std::size_t, 3> stride{0, 0, 0};  ///< bytes

  std::size_t bytes() const { return run * count[0] * count[1] * count[2]; }
};

struct Transfer {
  int peer = 0;  ///< a rank of the communicator; may be this one
  StridedRegion region;
};

/// One rank's part. All that a sends to b, one region after the other in the order of the list, is one payload of
/// bytes; what b receives from a, in the order of b's list, is the same payload, however either is cut into regions.
/// Regions that are received do not overlap each other.
struct Route {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
};

}  // namespace seqpar
