// Exchanges as kernels carry them out, by threads: one for each half of a lane's lines and for each of its tracks.
#pragma once

#include <chrono>
#include <vector>

#include "common/patience.h"
#include "exchange/device_strings.h"
#include "pipe_layout.h"
#include "unit/exchange/naive.h"

namespace seqpar::test {

/// What the pipes of all ranks are made of, kept from exchange to exchange.
class PipePeers {
 public:
  PipePeers(int size, int lanes, std::chrono::milliseconds timeout = kNoTimeout);

  int size() const { return size_; }
  /// How strings that come in chunks are taken: each by itself; or, being as long as each other, together.
  enum class Taking { Each, Together };
  /// Carries out the routes of the ranks in `present` (empty: all). By rank: whether it came to its end.
  std::vector<bool> exchange(const std::vector<Route>& routes, const Buffers& sends, Buffers& receives,
                             const std::vector<int>& present = {}, Taking taking = Taking::Each);
  void abort();
  /// 1 + the peer that `rank` has given up waiting for; 0: none.
  std::uint32_t gaveUp(int rank) const { return gaveUp_[static_cast<std::size_t>(rank)]; }

 private:
  struct Rank;
  void connect(int rank, std::vector<device::StringArg>& strings);

  int size_, lanes_;
  std::uint64_t timeoutNs_;
  std::vector<std::vector<std::max_align_t>> windows_;
  std::vector<std::vector<PipeState>> states_;
  std::vector<std::uint32_t> gaveUp_;
  std::uint32_t abort_ = 0;
};

}  // namespace seqpar::test
