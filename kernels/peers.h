// View of the other ranks for kernels that reach them by load and store. Passed to kernels by value.
#pragma once

#include <cstddef>
#include <cstdint>

namespace seqpar {

/// The most ranks that reach each other by load and store.
constexpr int kMostPeers = 32;

/// Timeout policy of device-side waits, and the word that reports a timeout.
struct WaitPolicy {
  const volatile std::uint32_t* abort = nullptr;  ///< host memory: give up if not 0
  volatile std::uint32_t* timedOut = nullptr;     ///< host memory: a kernel that timed out stores 1 + the peer here
  std::uint64_t timeoutNs = 0;                    ///< a single wait times out after this long; 0: never
};

/// The ranks of a communicator that reach each other's memory ("peers"), numbered in order of their ranks.
struct PeerView {
  int self = 0;                           ///< this rank's number among the peers
  int size = 1;                           ///< number of peers
  int channels = 1;                       ///< the most CTAs that a kernel may use; the same on all ranks
  std::byte* windows[kMostPeers] = {};    ///< each peer's window (kernels/fifo_layout.h), as mapped here
  std::byte* state = nullptr;             ///< this rank's own bookkeeping in device memory, kept between calls
  int byteFifoChannels = 1;               ///< channels of the byte FIFOs; at most `channels`
  std::byte* byteFifos[kMostPeers] = {};  ///< each peer's second window (kernels/byte_fifo_layout.h)
  std::byte* byteFifoState = nullptr;     ///< this rank's own bookkeeping of the byte FIFOs
  WaitPolicy waits;
};

}  // namespace seqpar
