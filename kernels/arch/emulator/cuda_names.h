// CUDA names for compilers other than nvcc, so that kernels in .cuh files run on an emulated CTA. Shared memory belongs
// to the emulated CTA: kernels receive it as an argument.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/arch/emulator/cta.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(bytes)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(uint32_t x, uint32_t y) {
  return {x, y};
}
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return {x, y, z, w};
}

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};
struct __half2 {
  uint32_t bits;
};
inline float __uint_as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline size_t __cvta_generic_to_shared(const void* pointer) {
  return seqpar::ptx::sharedAddress(pointer);
}

namespace seqpar::emulator {

struct Index {
  unsigned x;
};
inline Index threadIndex() {
  return {static_cast<unsigned>(ptx::thread())};
}
inline Index blockIndex() {
  return {static_cast<unsigned>(ptx::block())};
}
inline Index gridSize() {
  return {static_cast<unsigned>(ptx::blocks())};
}
inline bool anyOfWarp(bool value) {
  return ptx::reduxMax(value ? 1 : 0) != 0;
}
/// For one word, or two.
template <class Number>
Number shuffleAny(Number number, int from) {
  if constexpr (sizeof(Number) == 4) {
    return std::bit_cast<Number>(ptx::shfl(std::bit_cast<float>(number), from));
  } else {
    const auto bits = std::bit_cast<uint64_t>(number);
    const auto word = [&](uint64_t at) {
      return std::bit_cast<uint32_t>(ptx::shfl(std::bit_cast<float>(static_cast<uint32_t>(at)), from));
    };
    const uint64_t low = word(bits), high = word(bits >> 32);
    return std::bit_cast<Number>(low | high << 32);
  }
}

}  // namespace seqpar::emulator

#define threadIdx (::seqpar::emulator::threadIndex())
#define blockIdx (::seqpar::emulator::blockIndex())
#define gridDim (::seqpar::emulator::gridSize())

/// Whole warps only; all kernels here call it that way.
template <class Number>
Number __shfl_sync(unsigned, Number number, int from) {
  return seqpar::emulator::shuffleAny(number, from % 32);
}
template <class Number>
Number __shfl_xor_sync(unsigned, Number number, int mask) {
  return seqpar::emulator::shuffleAny(number, seqpar::ptx::thread() % 32 ^ mask);
}
template <class Number>
Number __shfl_up_sync(unsigned, Number number, int distance) {
  const int lane = seqpar::ptx::thread() % 32;
  return seqpar::emulator::shuffleAny(number, lane < distance ? lane : lane - distance);
}
template <class Number>
Number __shfl_down_sync(unsigned, Number number, int distance) {
  const int lane = seqpar::ptx::thread() % 32;
  return seqpar::emulator::shuffleAny(number, lane + distance > 31 ? lane : lane + distance);
}
inline int __any_sync(unsigned, bool value) {
  return seqpar::emulator::anyOfWarp(value) ? 1 : 0;
}
inline int __all_sync(unsigned, bool value) {
  return seqpar::ptx::voteAll(value) ? 1 : 0;
}
inline void __syncwarp() {
  seqpar::ptx::syncwarp();
}
inline void __syncthreads() {
  seqpar::ptx::syncthreads();
}
inline int __syncthreads_and(bool value) {
  return seqpar::ptx::syncthreadsAnd(value) ? 1 : 0;
}
inline int __syncthreads_or(bool value) {
  return seqpar::ptx::syncthreadsAnd(!value) ? 0 : 1;
}

namespace seqpar::attn {

using std::max;
using std::min;

}  // namespace seqpar::attn
