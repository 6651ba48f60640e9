// Words in device memory through which CTAs of concurrent kernels synchronize: gpu scope (PTX memory model). A kernel
// may only wait for CTAs that have started.
#pragma once

#include "kernels/arch/ptx.h"

#ifndef __CUDACC__
#include <atomic>
#include <stdexcept>
#endif

namespace seqpar::ptx {

#ifdef __CUDACC__

/// atom.add. Returns the word before.
SEQPAR_DEVICE uint32_t atomAddGpu(uint32_t* word, uint32_t more) {
  uint32_t before = 0;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(more) : "memory");
  return before;
}
/// red.add, after all accesses that this thread has made or a barrier has ordered before, also by bulk copies.
SEQPAR_DEVICE void redAddReleaseGpu(uint32_t* word, uint32_t more) {
  asm volatile("fence.proxy.async;\nfence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(more)
               : "memory");
}
/// fence.proxy.async for all memory: bulk copies see what a barrier has ordered before.
SEQPAR_DEVICE void fenceProxyAsyncAll() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
/// Waits until a word is at least `least`. Later accesses of this thread, also by bulk copies, see what threads wrote
/// before they added to it with redAddReleaseGpu().
SEQPAR_DEVICE void waitWordGpu(uint32_t* word, uint32_t least) {
  for (;;) {
    uint32_t value = 0;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    if (value >= least) break;
    asm volatile("nanosleep.u32 64;");
  }
  fenceProxyAsyncAll();
}
/// A word that other CTAs may store at the same time.
SEQPAR_DEVICE uint32_t loadRelaxedGpu(const uint32_t* word) {
  uint32_t value = 0;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
SEQPAR_DEVICE void storeRelaxedGpu(uint32_t* word, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
/// %smid: the number of the SM.
SEQPAR_DEVICE int smId() {
  uint32_t sm = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return static_cast<int>(sm);
}

#else

// In tests, kernels and CTAs run one after another. Atomic, because the thread sanitizer looks for races between CTAs.
inline uint32_t atomAddGpu(uint32_t* word, uint32_t more) {
  return std::atomic_ref<uint32_t>(*word).fetch_add(more, std::memory_order_relaxed);
}
inline void redAddReleaseGpu(uint32_t* word, uint32_t more) {
  std::atomic_ref<uint32_t>(*word).fetch_add(more, std::memory_order_release);
}
inline void fenceProxyAsyncAll() {}
inline void waitWordGpu(uint32_t* word, uint32_t least) {
  const uint32_t value = std::atomic_ref<uint32_t>(*word).load(std::memory_order_acquire);
  if (value < least) throw std::logic_error("a thread waits for a kernel that has ended");
}
inline uint32_t loadRelaxedGpu(const uint32_t* word) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(word)).load(std::memory_order_relaxed);
}
inline void storeRelaxedGpu(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_relaxed);
}
inline int smId() {
  return block();
}

#endif

}  // namespace seqpar::ptx
