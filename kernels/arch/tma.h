// TMA, sm_90 (cp.async.bulk.tensor): boxes of a tensor map between device memory and shared memory.
//
// A tile with kSwizzleColumns 16-bit elements per row has rows of 128 bytes; the hardware permutes their 16-byte
// vectors (vector v of row r is at v ^ (r & 7)), and swizzled() computes the same offsets for ordinary accesses. Such
// tiles are aligned to 1024 bytes; wgmma.h describes them to the tensor cores.
#pragma once

#include "kernels/arch/mbarrier.h"
#ifdef __CUDACC__
#include <cuda.h>
#endif

namespace seqpar::ptx {

constexpr int kSwizzleColumns = 64;  ///< 16-bit elements in a row of a tile
constexpr int kRowBytes = 2 * kSwizzleColumns;

/// The byte offset, in a tile, of a byte of a row.
SEQPAR_DEVICE constexpr int swizzled(int row, int byte) {
  return row * kRowBytes + (byte ^ (row & 7) << 4);
}

#ifdef __CUDACC__

/// L2 cache policy of a copy.
constexpr uint64_t kEvictNormal = 0x1000000000000000ULL;

/// One thread: copies the box of `map` at (column, head, token, batch) to shared memory; zeros outside of the tensor.
SEQPAR_DEVICE void tmaLoad(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int head, int token,
                           int batch, uint64_t policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(head), "r"(token), "r"(batch), "l"(policy)
      : "memory");
}
/// One thread: copies contiguous bytes of device memory to shared memory; addresses and size are multiples of 16.
SEQPAR_DEVICE void cpAsyncBulkLoad(void* to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   sharedAddress(to)),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
/// One thread: prefetches contiguous bytes to the L2 cache; address and size are multiples of 16.
SEQPAR_DEVICE void cpAsyncBulkPrefetch(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
/// One thread: prefetches the box to the L2 cache, for later ordinary loads.
SEQPAR_DEVICE void tmaPrefetch(const CUtensorMap& map, int column, int head, int token, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column), "r"(head),
               "r"(token), "r"(batch)
               : "memory");
}
/// One thread: copies from shared memory to the tensor, except outside of it. Must be followed by
/// cpAsyncBulkCommitGroup().
SEQPAR_DEVICE void tmaStore(const CUtensorMap& map, uint32_t from, int column, int head, int token, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(head), "r"(token), "r"(batch)
               : "memory");
}

#endif

}  // namespace seqpar::ptx
