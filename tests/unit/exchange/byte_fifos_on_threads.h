// Exchanges as kernels carry them out, by threads: one for each half of a channel's packets and for each of its warp
// FIFOs.
#pragma once

#include <chrono>
#include <vector>

#include "common/patience.h"
#include "exchange/device_payloads.h"
#include "kernels/byte_fifo_layout.h"
#include "unit/exchange/naive.h"

namespace seqpar::test {

/// What the byte FIFOs of all ranks are made of, kept from exchange to exchange.
class ByteFifoPeers {
 public:
  ByteFifoPeers(int size, int channels, std::chrono::milliseconds timeout = kNoTimeout);

  int size() const { return size_; }
  /// How payloads that come in chunks are taken: each by itself; or, being as long as each other, together.
  enum class Taking { Each, Together };
  /// Carries out the routes of the ranks in `present` (empty: all). By rank: whether it came to its end.
  std::vector<bool> exchange(const std::vector<Route>& routes, const Buffers& sends, Buffers& receives,
                             const std::vector<int>& present = {}, Taking taking = Taking::Each);
  void abort();
  /// 1 + the peer that `rank` has given up waiting for; 0: none.
  std::uint32_t timedOut(int rank) const { return gaveUp_[static_cast<std::size_t>(rank)]; }

 private:
  struct Rank;
  void connect(int rank, std::vector<device::PeerPayload>& payloads);

  int size_, channels_;
  std::uint64_t timeoutNs_;
  std::vector<std::vector<std::max_align_t>> windows_;
  std::vector<std::vector<ByteFifoState>> states_;
  std::vector<std::uint32_t> gaveUp_;
  std::uint32_t abort_ = 0;
};

}  // namespace seqpar::test
