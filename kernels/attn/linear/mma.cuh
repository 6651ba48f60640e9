// Tensor-core products of 16-bit elements with fp32 sums (mma.sync, sm_80 and up), and their fragments.
//
// Fragments of a warp, lane = 4 g + p: A (16 x 16): a[0] rows g, columns 2p, 2p+1; a[1] rows g+8; a[2], a[3] columns +
// 8. B (16 x 8): b[0] rows 2p, 2p+1, column g; b[1] rows + 8. C (16 x 8): c[0], c[1] row g, columns 2p, 2p+1; c[2],
// c[3] row g+8. Rounding alone converts C of X to A of X, and to B of its transpose.
#pragma once

#include <cstdint>

#include "kernels/attn/linear/warp_ops.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "kernels/attn/linear/cuda_emulator.h"
#endif

namespace seqpar::attn {

using Bfloat16 = __nv_bfloat16;
using Float16 = __half;

#ifdef __CUDACC__

/// Four 8 x 8 matrices of 16-bit elements; lanes 8 i to 8 i + 7 provide the addresses of the rows of matrix i.
__device__ __forceinline__ void loadMatrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void loadTransposed(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

/// 2^x, x at most about 126; 0 for x below -126.
__device__ __forceinline__ float exp2Fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The larger value, or NaN if either is NaN.
__device__ __forceinline__ float maxOrNan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

#else

inline void loadMatrices(uint32_t (&out)[4], uint32_t address) {
  warp::loadMatrices(out, warp::sharedAt(address));
}
inline void loadTransposed(uint32_t (&out)[4], uint32_t address) {
  warp::loadTransposed(out, warp::sharedAt(address));
}
inline float exp2Fast(float x) {
  return x < -126 ? 0 : std::exp2(x);
}
inline float maxOrNan(float a, float b) {
  return a != a || b != b ? NAN : std::max(a, b);
}

#endif

template <class T>
struct Numbers;

template <>
struct Numbers<Bfloat16> {
  /// A stage with a sum of log2-decays above this may be computed relative to its start: k 2^90 and its sums do not
  /// overflow.
  static constexpr float kSafeLog2 = -90;
  static constexpr float kLargest = 3e38F;
  static constexpr float kStateScale = 1;
  static __device__ __forceinline__ float2 unpack(uint32_t two) {
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000U));
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return floatsToBfloats(low, high); }
  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    warp::multiplyAdd<Bf16>(c, a, b0, b1);
  }
};

template <>
struct Numbers<Float16> {
  static constexpr float kSafeLog2 = -8;
  static constexpr float kLargest = 60000;
  static constexpr float kStateScale = 1.0F / 256;  ///< states are multiplied by this before rounding to fp16, because
                                                    ///< they may exceed its range
  static __device__ __forceinline__ float2 unpack(uint32_t two) {
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return floatsToHalves(low, high); }
  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    warp::multiplyAdd<Fp16>(c, a, b0, b1);
  }
};

}  // namespace seqpar::attn
