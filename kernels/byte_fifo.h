// Words at the ends of a byte FIFO, common to LL packets and chunks.
//
// Memory provides, all static:
//   Vec16 loadPacket(const Vec16*), void storePacket(Vec16*, Vec16): relaxed, system scope, 16 bytes at once;
//   uint64_t acquire(const uint64_t*), void release(uint64_t*, uint64_t);
//   uint64_t look(const uint64_t*), void tell(uint64_t*, uint64_t): for counters of packets read. No other write has to
//     be visible with them, so relaxed suffices once a load has returned its value;
//   uint32_t load(const uint32_t*), void store(uint32_t*, uint32_t): relaxed;
//   uint64_t now(): nanoseconds; void pause(): after an unsuccessful poll.
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
