// What both ways through byte FIFOs have in common: the words at their ends.
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

SEQPAR_DEVICE std::uint64_t* wordAt(std::byte* end, std::size_t offset) {
  return reinterpret_cast<std::uint64_t*>(end + offset);
}

}  // namespace seqpar
