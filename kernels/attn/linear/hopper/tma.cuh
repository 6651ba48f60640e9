// The bulk tensor copy engine (TMA) and its barriers, sm_90: tiles between device memory and shared memory.
//
// A tile of kSwizzleColumns 16-bit numbers a row has rows of 128 bytes; the hardware exchanges their 16-byte vectors
// (vector v of row r lies at v ^ (r & 7)), which swizzled() repeats for ordinary accesses. Such tiles begin at
// multiples of 1024 bytes and are what matrix.cuh describes to the tensor cores.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda.h>
#else
#include "kernels/attn/linear/hopper/tma_emulator.h"
#endif

namespace seqpar::attn::hopper {

constexpr int kSwizzleColumns = 64;  ///< 16-bit numbers in a row of a tile
constexpr int kRowBytes = 2 * kSwizzleColumns;

/// The byte of a tile at which a row's byte is.
__device__ __forceinline__ constexpr int swizzled(int row, int byte) {
  return row * kRowBytes + (byte ^ (row & 7) << 4);
}

#ifdef __CUDACC__

/// A barrier in shared memory, of 8 bytes: a phase ends when `count` threads have arrived and all bytes announced have
/// come. Phases are told apart by their parity, the first one's being 0.
__device__ __forceinline__ void initBarrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// After initBarrier(), before other threads and the copy engine use them.
__device__ __forceinline__ void fenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives and announces bytes that the copy engine will bring.
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

/// A barrier among `threads` of a CTA, a multiple of 32; 0 is __syncthreads().
__device__ __forceinline__ void syncNamed(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// The same, and whether `mine` is true for any of them.
__device__ __forceinline__ bool anyNamed(int id, int threads, bool mine) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\nselp.s32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(mine ? 1 : 0), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

/// What the L2 cache does with what a copy brings.
constexpr uint64_t kEvictNormal = 0x1000000000000000ULL;

/// One thread: the box of `map` at (column, head, token, batch) to shared memory; zeros where the tensor has nothing.
__device__ __forceinline__ void loadBox(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int head,
                                        int token, int batch, uint64_t policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(head), "r"(token), "r"(batch), "l"(policy)
      : "memory");
}
/// One thread: the box to the L2 cache, for ordinary loads to come.
__device__ __forceinline__ void prefetchBox(const CUtensorMap& map, int column, int head, int token, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column), "r"(head),
               "r"(token), "r"(batch)
               : "memory");
}
/// One thread: the other way; what the tensor does not have is left out. Ends with warp::commitBulk().
__device__ __forceinline__ void storeBox(const CUtensorMap& map, uint32_t from, int column, int head, int token,
                                         int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(head), "r"(token), "r"(batch)
               : "memory");
}

/// Four 8 x 8 matrices of 16-bit numbers to shared memory, as ldmatrix's counterpart; `lane` 8 i + r has the address of
/// row r of matrix i.
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
