// What both ways through byte FIFOs have in common: the words at their ends, and waiting for one.
//
// Memory has, all static:
//   Vec16 loadPacket(const Vec16*), void storePacket(Vec16*, Vec16): relaxed, of the whole system, 16 bytes as one;
//   uint64_t acquire(const uint64_t*), void release(uint64_t*, uint64_t);
//   uint64_t look(const uint64_t*), void tell(uint64_t*, uint64_t): of words that say what was read: nothing that was
//     written needs to be seen with them, so relaxed will do where a load that has returned its value is over;
//   uint32_t load(const uint32_t*), void store(uint32_t*, uint32_t): relaxed;
//   uint64_t now(): nanoseconds; void pause(): after a look that found nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/byte_fifo_layout.h"
#include "kernels/fifo.h"

namespace seqpar {

/// 16 bytes.
#ifdef __CUDACC__
using Vec16 = uint4;
#else
struct alignas(16) Vec16 {
  std::uint32_t x, y, z, w;
};
#endif

/// How long to wait, and whom to tell.
struct WaitPolicy {
  std::uint32_t* abort;     ///< host memory: give up if not 0
  std::uint32_t* timedOut;  ///< host memory: who times out stores 1 + the peer here
  std::uint64_t timeoutNs;  ///< of a single wait; 0: for ever
};

/// Looks until there() is true. False: timed out, and nothing more must be published.
template <class Memory, class There>
SEQPAR_DEVICE bool awaitPeer(const WaitPolicy& waitPolicy, int peer, const There& there) {
  constexpr std::uint32_t kLooks = 2048;  // reading host memory takes longer than all of these
  std::uint64_t begin = 0;
  SEQPAR_ROLLED
  for (std::uint32_t looks = 1; !there(); ++looks) {
    Memory::pause();
    if (looks % kLooks != 0) continue;
    if (begin == 0) begin = Memory::now();
    const bool late = waitPolicy.timeoutNs != 0 && Memory::now() - begin > waitPolicy.timeoutNs;
    if (!late && Memory::load(waitPolicy.abort) == 0) continue;
    Memory::store(waitPolicy.timedOut, 1U + static_cast<std::uint32_t>(peer));
    return false;
  }
  return true;
}

SEQPAR_DEVICE std::uint64_t* wordAt(std::byte* end, std::size_t offset) {
  return reinterpret_cast<std::uint64_t*>(end + offset);
}

}  // namespace seqpar
