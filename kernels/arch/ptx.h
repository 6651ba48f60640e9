// Instructions of threads: indexes, shuffles, barriers of a CTA, vector accesses, approximate functions. Each wrapper
// has the name of its PTX instruction (sm_80 and up, unless stated). Compilers other than nvcc get
// kernels/arch/emulator, which runs the same kernels on a CPU. mma.h, async_copy.h, mbarrier.h, tma.h and pdl.h have
// further instructions, warpgroup.h those of warpgroups, system_memory.h accesses to the memory of other ranks.
#pragma once

#include <cstdint>

#include "kernels/arch/numbers.h"

namespace seqpar::ptx {

/// Limits of a CTA.
constexpr int kNamedBarriers = 16;
constexpr int kSharedBytesSm80 = 163 << 10, kSharedBytesSm90 = 227 << 10;

}  // namespace seqpar::ptx

#ifdef __CUDACC__

namespace seqpar::ptx {

SEQPAR_DEVICE int thread() {
  return static_cast<int>(threadIdx.x);
}
/// Reads the register again: keeps no copy of thread() alive.
SEQPAR_DEVICE int opaqueThread() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
SEQPAR_DEVICE int block() {
  return static_cast<int>(blockIdx.x);
}
SEQPAR_DEVICE int blocks() {
  return static_cast<int>(gridDim.x);
}
SEQPAR_DEVICE char* sharedMemory() {
  extern __shared__ __align__(1024) char memory[];
  return memory;
}
SEQPAR_DEVICE uint32_t sharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

SEQPAR_DEVICE void syncthreads() {
  __syncthreads();
}
SEQPAR_DEVICE void syncwarp() {
  __syncwarp();
}
/// vote.sync.all: whether `value` is true on all lanes. A branch on it is the whole warp's, so it may contain
/// syncwarp().
SEQPAR_DEVICE bool voteAll(bool value) {
  return __all_sync(0xffffffffU, value ? 1 : 0) != 0;
}
/// A barrier; returns true if `value` is true on all threads.
SEQPAR_DEVICE bool syncthreadsAnd(bool value) {
  return __syncthreads_and(value ? 1 : 0) != 0;
}
/// barrier.cta.sync: named barrier kId, 1 to 15, of kThreads threads; some of them may only arrive.
template <int kId, int kThreads>
SEQPAR_DEVICE void barrierSync() {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
template <int kId, int kThreads>
SEQPAR_DEVICE void barrierArrive() {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
/// The same with a barrier selected at run time; `threads` is a multiple of 32.
SEQPAR_DEVICE void barrierSync(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// barrier.cta.red.or: returns true if `mine` is true on any of its threads.
SEQPAR_DEVICE bool barrierRedOr(int id, int threads, bool mine) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\nselp.s32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(mine ? 1 : 0), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

/// The same with a constant number of threads.
template <int kThreads>
SEQPAR_DEVICE bool barrierRedOr(int id, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(mine ? 1U : 0U), "r"(id), "n"(kThreads)
      : "memory");
  return any != 0;
}

/// Tells the compiler that a value is the same in all lanes.
SEQPAR_DEVICE int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}
SEQPAR_DEVICE float shfl(float value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
SEQPAR_DEVICE float shflXor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
/// redux.sync.max over a warp.
SEQPAR_DEVICE uint32_t reduxMax(uint32_t x) {
  return __reduce_max_sync(0xffffffffu, x);
}

/// Opaque copy: hides the value from the optimizer, which otherwise hoists what depends on it out of loops.
SEQPAR_DEVICE int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
SEQPAR_DEVICE int64_t opaque(int64_t value) {
  asm volatile("" : "+l"(value));
  return value;
}

/// 2^x, x at most about 126; 0 for x below -126.
SEQPAR_DEVICE float ex2Approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
/// The same for x <= 0, which the emulator verifies.
SEQPAR_DEVICE float ex2ApproxOfDecay(float x) {
  return ex2Approx(x);
}
SEQPAR_DEVICE float rcpApprox(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
/// The larger value, or NaN if either is NaN.
SEQPAR_DEVICE float maxNan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
/// The elementwise maximum of two pairs of 16 bits; sm_90 and up.
SEQPAR_DEVICE uint32_t maxU16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

SEQPAR_DEVICE void storePair(float* to, float low, float high) {
  *reinterpret_cast<float2*>(to) = make_float2(low, high);
}
/// st.global.cs: for data that is not read again soon.
SEQPAR_DEVICE void storeStreaming(float* to, float low, float high) {
  __stcs(reinterpret_cast<float2*>(to), make_float2(low, high));
}
SEQPAR_DEVICE void storeStreaming(uint16_t* to, uint32_t pair) {
  __stcs(reinterpret_cast<unsigned*>(to), pair);
}
SEQPAR_DEVICE void storeStreaming(uint16_t* to, uint32_t pair, uint32_t next) {
  __stcs(reinterpret_cast<uint2*>(to), make_uint2(pair, next));
}
/// 16 bytes.
SEQPAR_DEVICE void storeStreaming(void* to, const uint32_t (&words)[4]) {
  __stcs(reinterpret_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
}
SEQPAR_DEVICE void store(void* to, const uint32_t (&words)[4]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}
/// The same to global memory: nvcc may split store() into four stores where it does not know the address space early.
SEQPAR_DEVICE void storeGlobal(void* to, const uint32_t (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}
SEQPAR_DEVICE void load(uint32_t (&words)[4], const void* from) {
  const uint4 all = *static_cast<const uint4*>(from);
  words[0] = all.x;
  words[1] = all.y;
  words[2] = all.z;
  words[3] = all.w;
}
SEQPAR_DEVICE void loadPair(const float* from, float& low, float& high) {
  const float2 pair = *reinterpret_cast<const float2*>(from);
  low = pair.x;
  high = pair.y;
}
/// prefetch.global.L2
SEQPAR_DEVICE void prefetch(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

}  // namespace seqpar::ptx

#else

#include "kernels/arch/emulator/cta.h"

#endif
