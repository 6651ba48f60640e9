// Operations of a CTA's threads: matrix products of a warp, loads of their operands from shared memory, shuffles,
// barriers, asynchronous copies. CUDA code gets PTX for sm_80 and up; other compilers get warp_emulator.h, which runs
// the same kernels on a CPU, one fiber per thread.
//
// Fragments are those of mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"). With g = lane / 4 and
// c = lane % 4, an accumulator tile of 16 x 8 has {(g, 2c), (g, 2c+1), (g+8, 2c), (g+8, 2c+1)} in a lane.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/numbers.h"

namespace seqpar::attn {

/// The 16-bit types of q, k and v.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

}  // namespace seqpar::attn

namespace seqpar::attn::warp {

template <class T>
inline constexpr bool kIsBf16 = std::is_same_v<T, Bf16>;

}  // namespace seqpar::attn::warp

#ifdef __CUDACC__

namespace seqpar::attn::warp {

__device__ __forceinline__ int thread() {
  return static_cast<int>(threadIdx.x);
}
/// Reads the register again: keeps no copy of thread() alive.
__device__ __forceinline__ int opaqueThread() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
__device__ __forceinline__ int block() {
  return static_cast<int>(blockIdx.x);
}
__device__ __forceinline__ int blocks() {
  return static_cast<int>(gridDim.x);
}
__device__ __forceinline__ void syncBlock() {
  __syncthreads();
}
__device__ __forceinline__ void syncWarp() {
  __syncwarp();
}
/// A barrier; returns true if `value` is true on all threads.
__device__ __forceinline__ bool allOfBlock(bool value) {
  return __syncthreads_and(value ? 1 : 0) != 0;
}
/// griddepcontrol.wait. Required before reading data of earlier kernels of the stream, if this kernel may start before
/// they end.
__device__ __forceinline__ void griddepcontrolWait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Named barrier kId, 1 to 15, of kThreads threads; some of them may only arrive.
template <int kId, int kThreads>
__device__ __forceinline__ void syncNamed() {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
template <int kId, int kThreads>
__device__ __forceinline__ void arriveNamed() {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
__device__ __forceinline__ char* sharedMemory() {
  extern __shared__ __align__(1024) char memory[];
  return memory;
}

/// Tells the compiler that a value is the same in all lanes.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}
/// Opaque copy: hides the value from the optimizer.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ int64_t opaque(int64_t value) {
  asm volatile("" : "+l"(value));
  return value;
}
__device__ __forceinline__ float shuffle(float value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
__device__ __forceinline__ float shuffleXor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// Converts two values to T, the first in the lower bits. fp16 saturates: sums of many products may exceed its range.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, Bf16>) return floatsToBfloats(low, high);
  const float most = 65504.f;
  return floatsToHalves(fminf(fmaxf(low, -most), most), fminf(fmaxf(high, -most), most));
}
template <class T>
__device__ __forceinline__ float lowOf(uint32_t both) {
  if constexpr (std::is_same_v<T, Bf16>) return bfloatToFloat(both);
  return halfToFloat(both);
}
template <class T>
__device__ __forceinline__ float highOf(uint32_t both) {
  if constexpr (std::is_same_v<T, Bf16>) return asFloat(both & 0xffff0000u);
  return halfToFloat(both >> 16);
}

/// 2^x; 0 below -126.
__device__ __forceinline__ float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ uint32_t sharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void storePair(float* to, float low, float high) {
  *reinterpret_cast<float2*>(to) = make_float2(low, high);
}
/// For data that is not read again soon.
__device__ __forceinline__ void storeStreaming(float* to, float low, float high) {
  __stcs(reinterpret_cast<float2*>(to), make_float2(low, high));
}
__device__ __forceinline__ void storeStreaming(uint16_t* to, uint32_t pair) {
  __stcs(reinterpret_cast<unsigned*>(to), pair);
}
__device__ __forceinline__ void storeStreaming(uint16_t* to, uint32_t pair, uint32_t next) {
  __stcs(reinterpret_cast<uint2*>(to), make_uint2(pair, next));
}
/// 16 bytes.
__device__ __forceinline__ void storeStreaming(void* to, const uint32_t (&words)[4]) {
  __stcs(reinterpret_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
}
__device__ __forceinline__ void store(void* to, const uint32_t (&words)[4]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ __forceinline__ void load(uint32_t (&words)[4], const void* from) {
  const uint4 all = *static_cast<const uint4*>(from);
  words[0] = all.x;
  words[1] = all.y;
  words[2] = all.z;
  words[3] = all.w;
}
__device__ __forceinline__ void loadPair(const float* from, float& low, float& high) {
  const float2 pair = *reinterpret_cast<const float2*>(from);
  low = pair.x;
  high = pair.y;
}

/// Loads 4 or 8 bytes from device memory that is constant during the kernel; zeros if not `valid`.
__device__ __forceinline__ void loadConstant(uint32_t& word, const void* from, bool valid) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0;\n@p ld.global.nc.L1::no_allocate.b32 %0, [%1];\n}"
      : "=&r"(word)
      : "l"(from), "r"(valid ? 1 : 0));
}
__device__ __forceinline__ void loadConstant(uint32_t& low, uint32_t& high, const void* from, bool valid) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
      "@p ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];\n}"
      : "=&r"(low), "=&r"(high)
      : "l"(from), "r"(valid ? 1 : 0));
}

/// Four 8 x 8 matrices; lane i provides the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void loadMatrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(sharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void loadTransposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(sharedAddress(row))
               : "memory");
}
/// The reverse of loadMatrices().
__device__ __forceinline__ void storeMatrices(void* row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(sharedAddress(row)), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}
/// The transpose of an 8 x 8 matrix that the warp holds.
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

/// c += a b for a tile of 16 x 8 and 16 terms.
template <class T>
__device__ __forceinline__ void multiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiplyAdd<Bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiplyAdd<Fp16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c += a b for 16 x 8 and 8 terms, in TF32, which reads the upper 19 bits. a: rows g, g+8 of term c, then of term c+4;
/// b: column g of terms c and c+4.
__device__ __forceinline__ void multiplyAddTf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t bitsOf(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ float ofBits(uint32_t x) {
  return __uint_as_float(x);
}
__device__ __forceinline__ uint32_t largestOfWarp(uint32_t x) {
  return __reduce_max_sync(0xffffffffu, x);
}
/// The elementwise maximum of two pairs of 16 bits; sm_90 and up.
__device__ __forceinline__ uint32_t largerOfPairs(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Copies 16 bytes to shared memory; writes zeros and does not read `from` if not `valid`.
__device__ __forceinline__ void copyAsync(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sharedAddress(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `kLeft` of this thread's groups are in flight.
template <int kLeft>
__device__ __forceinline__ void awaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
/// One thread: copies bytes in shared memory, after fenceProxyAsync(), to device memory; addresses and size are
/// multiples of 16.
__device__ __forceinline__ void storeBulk(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(sharedAddress(from)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commitBulk() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until at most `kLeft` of this thread's groups still read shared memory.
template <int kLeft>
__device__ __forceinline__ void awaitBulkRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
/// Waits until all of this thread's groups are complete.
__device__ __forceinline__ void awaitBulk() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void prefetch(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

}  // namespace seqpar::attn::warp

#define SEQPAR_WARP __device__ __forceinline__
#define SEQPAR_WARP_CALL __device__ __noinline__
#define SEQPAR_UNROLL _Pragma("unroll")
#define SEQPAR_ROLL _Pragma("unroll 1")

#else

#include "kernels/attn/linear/warp_emulator.h"
#define SEQPAR_WARP inline
#define SEQPAR_WARP_CALL inline
#define SEQPAR_UNROLL
#define SEQPAR_ROLL

#endif
