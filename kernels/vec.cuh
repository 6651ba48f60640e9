// Elements of a type selected at run time, accessed one, four or eight at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/arch/device.h"
#include "seqpar/seqpar.h"

namespace seqpar {

constexpr std::size_t elementBytes(seqparDataType_t type) {
  return type == seqparFloat32 ? 4 : 2;
}

template <int kWidth>
struct alignas(kWidth < 4 ? 4 : 16) Vec {
  float value[kWidth];
};

template <int kWidth>
SEQPAR_DEVICE Vec<kWidth> loadVec(const void* data, seqparDataType_t type, std::size_t i) {
  Vec<kWidth> out;
  if (type == seqparFloat32) {
    const float* from = static_cast<const float*>(data) + i;
    if constexpr (kWidth >= 4) {
#pragma unroll
      for (int k = 0; k < kWidth; k += 4) {
        *reinterpret_cast<float4*>(out.value + k) = *reinterpret_cast<const float4*>(from + k);
      }
    } else {
      out.value[0] = *from;
    }
    return out;
  }
  alignas(16) std::uint16_t bits[kWidth];
  const std::uint16_t* from = static_cast<const std::uint16_t*>(data) + i;
  if constexpr (kWidth == 8) {
    *reinterpret_cast<uint4*>(bits) = *reinterpret_cast<const uint4*>(from);
  } else if constexpr (kWidth == 4) {
    *reinterpret_cast<uint2*>(bits) = *reinterpret_cast<const uint2*>(from);
  } else {
    bits[0] = *from;
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    out.value[k] = type == seqparFloat16 ? __half2float(__ushort_as_half(bits[k]))
                                         : __bfloat162float(__ushort_as_bfloat16(bits[k]));
  }
  return out;
}

template <int kWidth>
SEQPAR_DEVICE void storeVec(void* data, seqparDataType_t type, std::size_t i, const Vec<kWidth>& vec) {
  if (type == seqparFloat32) {
    float* to = static_cast<float*>(data) + i;
    if constexpr (kWidth >= 4) {
#pragma unroll
      for (int k = 0; k < kWidth; k += 4) {
        *reinterpret_cast<float4*>(to + k) = *reinterpret_cast<const float4*>(vec.value + k);
      }
    } else {
      *to = vec.value[0];
    }
    return;
  }
  alignas(16) std::uint16_t bits[kWidth];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    bits[k] = type == seqparFloat16 ? __half_as_ushort(__float2half_rn(vec.value[k]))
                                    : __bfloat16_as_ushort(__float2bfloat16_rn(vec.value[k]));
  }
  std::uint16_t* to = static_cast<std::uint16_t*>(data) + i;
  if constexpr (kWidth == 8) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(bits);
  } else if constexpr (kWidth == 4) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(bits);
  } else {
    *to = bits[0];
  }
}

/// c x + s; a factor of 0 discards x, even NaN or infinity.
SEQPAR_DEVICE float applyFactor(float c, float x, float s) {
  return c == 0.0F ? s : fmaf(c, x, s);
}

/// a / b; 32-bit division for most sizes, which is many times faster.
SEQPAR_DEVICE std::size_t quotient(std::size_t a, std::size_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

}  // namespace seqpar
