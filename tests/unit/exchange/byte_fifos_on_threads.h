// Exchanges as kernels execute them, by threads: one for each half of a channel's packets and one for each of its warp
// FIFOs.
#pragma once

#include <chrono>
#include <vector>

#include "common/timeouts.h"
#include "exchange/device_payloads.h"
#include "kernels/byte_fifo_layout.h"
#include "unit/exchange/naive.h"

namespace seqpar::test {

/// The byte FIFOs of all ranks, kept from exchange to exchange.
class ByteFifoPeers {
 public:
  ByteFifoPeers(int size, int channels, std::chrono::milliseconds timeout = kNoTimeout);

  int size() const { return size_; }
  /// How payloads in chunks are received: one by one; or, if their lengths are equal, together.
  enum class Taking { Each, Together };
  /// Executes the routes of the ranks in `present` (empty: all). Returns, by rank, whether it completed.
  std::vector<bool> exchange(const std::vector<Route>& routes, const Buffers& sends, Buffers& receives,
                             const std::vector<int>& present = {}, Taking taking = Taking::Each);
  void abort();
  /// 1 + the peer that `rank` waited for until the timeout; 0: none.
  std::uint32_t timedOut(int rank) const { return timedOut_[static_cast<std::size_t>(rank)]; }

 private:
  struct Rank;
  void connect(int rank, std::vector<device::PeerPayload>& payloads);

  int size_, channels_;
  std::uint64_t timeoutNs_;
  std::vector<std::vector<std::max_align_t>> windows_;
  std::vector<std::vector<ByteFifoState>> states_;
  std::vector<std::uint32_t> timedOut_;
  std::uint32_t abort_ = 0;
};

}  // namespace seqpar::test
