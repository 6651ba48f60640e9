// Runs of numbers of any type, as floats, by a type that is known at run time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/attn/softmax/args.h"

namespace seqpar::attn::softmax {

template <int kWidth>
struct Numbers {
  float value[kWidth];
};

__device__ inline float asFloat(std::uint16_t bits, seqparDataType_t type) {
  return type == seqparFloat16 ? __half2float(__ushort_as_half(bits)) : __bfloat162float(__ushort_as_bfloat16(bits));
}

__device__ inline std::uint16_t asBits(float value, seqparDataType_t type) {
  return type == seqparFloat16 ? __half_as_ushort(__float2half_rn(value))
                               : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/// kWidth is 1 or 4; 4 needs an address aligned to 4 elements.
template <int kWidth>
__device__ inline Numbers<kWidth> load(const void* data, seqparDataType_t type, int64_t at) {
  static_assert(kWidth == 1 || kWidth == 4);
  Numbers<kWidth> out;
  if (type == seqparFloat32) {
    const float* from = static_cast<const float*>(data) + at;
    if constexpr (kWidth == 4) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      out.value[0] = four.x;
      out.value[1] = four.y;
      out.value[2] = four.z;
      out.value[3] = four.w;
    } else {
      out.value[0] = *from;
    }
  } else {
    const std::uint16_t* from = static_cast<const std::uint16_t*>(data) + at;
    if constexpr (kWidth == 4) {
      const ushort4 four = *reinterpret_cast<const ushort4*>(from);
      out = {asFloat(four.x, type), asFloat(four.y, type), asFloat(four.z, type), asFloat(four.w, type)};
    } else {
      out.value[0] = asFloat(*from, type);
    }
  }
  return out;
}

template <int kWidth>
__device__ inline void store(void* data, seqparDataType_t type, int64_t at, const Numbers<kWidth>& numbers) {
  static_assert(kWidth == 1 || kWidth == 4);
  const float* x = numbers.value;
  if (type == seqparFloat32) {
    float* to = static_cast<float*>(data) + at;
    if constexpr (kWidth == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
      *to = x[0];
    }
  } else {
    std::uint16_t* to = static_cast<std::uint16_t*>(data) + at;
    if constexpr (kWidth == 4) {
      *reinterpret_cast<ushort4*>(to) =
          make_ushort4(asBits(x[0], type), asBits(x[1], type), asBits(x[2], type), asBits(x[3], type));
    } else {
      *to = asBits(x[0], type);
    }
  }
}

/// Whether rows of `dim` numbers of a view can be read four at a time.
inline bool byFours(const View& view, int64_t dim) {
  if (view.data == nullptr) return true;
  const auto bytes = view.type == seqparFloat32 ? 16U : 8U;
  return dim % 4 == 0 && view.batch % 4 == 0 && view.token % 4 == 0 && view.head % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
}

}  // namespace seqpar::attn::softmax
