// What both ways through pipes have in common: the words at their ends, and waiting for one.
//
// Memory has, all static:
//   Unit loadLine(const Unit*), void storeLine(Unit*, Unit): relaxed, of the whole system, 16 bytes as one;
//   uint64_t acquire(const uint64_t*), void release(uint64_t*, uint64_t);
//   uint64_t look(const uint64_t*), void tell(uint64_t*, uint64_t): of words that say what was read: nothing that was
//     written needs to be seen with them, so relaxed will do where a load that has returned its value is over;
//   uint32_t load(const uint32_t*), void store(uint32_t*, uint32_t): relaxed;
//   uint64_t now(): nanoseconds; void pause(): after a look that found nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "channel.h"
#include "pipe_layout.h"

namespace seqpar {

/// 16 bytes.
#ifdef __CUDACC__
using Unit = uint4;
#else
struct alignas(16) Unit {
  std::uint32_t x, y, z, w;
};
#endif

/// How long to wait, and whom to tell.
struct Patience {
  std::uint32_t* abort;     ///< host memory: give up if not 0
  std::uint32_t* gaveUp;    ///< host memory: who gives up stores 1 + the peer here
  std::uint64_t timeoutNs;  ///< of a single wait; 0: for ever
};

/// Looks until there() is true. False: gave up, and nothing more must be published.
template <class Memory, class There>
SEQPAR_LANE bool awaitPeer(const Patience& patience, int peer, const There& there) {
  constexpr std::uint32_t kLooks = 2048;  // reading host memory takes longer than all of these
  std::uint64_t begin = 0;
  SEQPAR_ROLLED
  for (std::uint32_t looks = 1; !there(); ++looks) {
    Memory::pause();
    if (looks % kLooks != 0) continue;
    if (begin == 0) begin = Memory::now();
    const bool late = patience.timeoutNs != 0 && Memory::now() - begin > patience.timeoutNs;
    if (!late && Memory::load(patience.abort) == 0) continue;
    Memory::store(patience.gaveUp, 1U + static_cast<std::uint32_t>(peer));
    return false;
  }
  return true;
}

SEQPAR_LANE std::uint64_t* wordAt(std::byte* end, std::size_t offset) {
  return reinterpret_cast<std::uint64_t*>(end + offset);
}

}  // namespace seqpar
