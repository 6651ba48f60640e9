// Asynchronous copies without barriers in memory: cp.async of a thread (sm_80 and up), cp.async.bulk of the copy engine
// from shared memory (sm_90). Both are waited for by groups of the issuing thread.
#pragma once

#include "kernels/arch/ptx.h"

#ifdef __CUDACC__

namespace seqpar::ptx {

/// cp.async.cg: copies 16 bytes to shared memory; writes zeros and does not read `from` if not `valid`.
SEQPAR_DEVICE void cpAsync16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
SEQPAR_DEVICE void cpAsync16(void* to, const void* from, bool valid) {
  cpAsync16(sharedAddress(to), from, valid);
}
/// cp.async.ca of 4 bytes.
SEQPAR_DEVICE void cpAsync4(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
SEQPAR_DEVICE void cpAsyncCommitGroup() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `kLeft` of this thread's groups are in flight.
template <int kLeft>
SEQPAR_DEVICE void cpAsyncWaitGroup() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// cp.async.bulk.global.shared::cta: one thread copies bytes in shared memory, after warpgroup::fenceProxyAsync(), to
/// device memory; addresses and size are multiples of 16.
SEQPAR_DEVICE void cpAsyncBulkStore(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(sharedAddress(from)),
               "r"(bytes)
               : "memory");
}
SEQPAR_DEVICE void cpAsyncBulkCommitGroup() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until at most `kLeft` of this thread's groups still read shared memory.
template <int kLeft>
SEQPAR_DEVICE void cpAsyncBulkWaitGroupRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
/// Waits until all of this thread's groups are complete.
SEQPAR_DEVICE void cpAsyncBulkWaitGroup() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace seqpar::ptx

#endif
