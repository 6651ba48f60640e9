// The TMA and its barriers, sm_90: tiles between device memory and shared memory.
//
// A tile with kSwizzleColumns 16-bit elements per row has rows of 128 bytes; the hardware permutes their 16-byte
// vectors (vector v of row r is at v ^ (r & 7)), and swizzled() computes the same offsets for ordinary accesses. Such
// tiles are aligned to 1024 bytes; matrix.cuh describes them to the tensor cores.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda.h>
#else
#include "kernels/attn/linear/hopper/tma_emulator.h"
#endif

namespace seqpar::attn::hopper {

constexpr int kSwizzleColumns = 64;  ///< 16-bit elements in a row of a tile
constexpr int kRowBytes = 2 * kSwizzleColumns;

/// The byte offset, in a tile, of a byte of a row.
__device__ __forceinline__ constexpr int swizzled(int row, int byte) {
  return row * kRowBytes + (byte ^ (row & 7) << 4);
}

#ifdef __CUDACC__

/// mbarrier in shared memory, 8 bytes: a phase ends when `count` threads have arrived and all expected bytes are
/// transferred. Phases are identified by their parity; the first one has parity 0.
__device__ __forceinline__ void initBarrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Required after initBarrier(), before other threads and the TMA use the barriers.
__device__ __forceinline__ void fenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives and adds to the bytes that the TMA will transfer.
__device__ __forceinline__ void arriveExpecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits until the phase of that parity has ended.
__device__ __forceinline__ void waitBarrier(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Named barrier of `threads` threads of a CTA, a multiple of 32; 0 is __syncthreads().
__device__ __forceinline__ void syncNamed(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Named barrier; returns true if `mine` is true on any of its threads.
__device__ __forceinline__ bool anyNamed(int id, int threads, bool mine) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\nselp.s32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(mine ? 1 : 0), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

/// L2 cache policy of a copy.
constexpr uint64_t kEvictNormal = 0x1000000000000000ULL;

/// One thread: copies the box of `map` at (column, head, token, batch) to shared memory; zeros outside of the tensor.
__device__ __forceinline__ void loadBox(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int head,
                                        int token, int batch, uint64_t policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(head), "r"(token), "r"(batch), "l"(policy)
      : "memory");
}
/// One thread: prefetches the box to the L2 cache, for later ordinary loads.
__device__ __forceinline__ void prefetchBox(const CUtensorMap& map, int column, int head, int token, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column), "r"(head),
               "r"(token), "r"(batch)
               : "memory");
}
/// One thread: copies from shared memory to the tensor, except outside of it. Must be followed by warp::commitBulk().
__device__ __forceinline__ void storeBox(const CUtensorMap& map, uint32_t from, int column, int head, int token,
                                         int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(head), "r"(token), "r"(batch)
               : "memory");
}

/// stmatrix: stores four 8 x 8 matrices of 16-bit elements to shared memory; lane 8 i + r has the address of row r of
/// matrix i.
__device__ __forceinline__ void storeMatrices(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void storeTransposed(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

#endif

}  // namespace seqpar::attn::hopper
