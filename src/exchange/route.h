// One rank's sends and receives in an exchange, as data. Pure functions build routes (layout, mesh, all-to-all, halo,
// ...); an ExchangeBackend executes them on host memory or on a GPU, independent of their meaning.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace seqpar {

/// count[0] x count[1] x count[2] runs of contiguous bytes in one of the caller's buffers, row-major in that order.
struct StridedRegion {
  int buffer = 0;          ///< index of one of the call's send or receive buffers
  std::size_t offset = 0;  ///< bytes from the buffer's start to the first run
  std::size_t run = 0;     ///< bytes of a run
  std::array<std::size_t, 3> count{1, 1, 1};
  std::array<std::size_t, 3> stride{0, 0, 0};  ///< bytes

  std::size_t bytes() const { return run * count[0] * count[1] * count[2]; }
};

struct Transfer {
  int peer = 0;  ///< a rank of the communicator; may be this rank
  StridedRegion region;
};

/// One rank's part. a's sends to b, concatenated in list order, are one payload of bytes; b's receives from a, in the
/// order of b's list, are the same payload, even if the two ranks cut it into different regions. Received regions do
/// not overlap each other.
struct Route {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  int ctas = 0;  ///< on GPUs: maximum number of CTAs, equal on all ranks; 0: the communicator's
  /// An all-gather: each of the ranks 0 ... gatherers - 1 sends one run of equal length to all of them, and send and
  /// receive buffer 0 start with it and with the first rank's. Equal on all ranks. 0: any other exchange.
  int gatherers = 0;
};

}  // namespace seqpar
