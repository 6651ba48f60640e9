// fp16 and bf16 as bits and as fp32: to nearest, ties to even, subnormals included. NaN stays NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include "channel.h"
#ifndef __CUDACC__
#include "base/convert.h"
#endif

namespace seqpar {

SEQPAR_LANE float asFloat(std::uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

SEQPAR_LANE std::uint32_t asBits(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

/// From the lower 16 bits.
SEQPAR_LANE float bfloatToFloat(std::uint32_t bits) {
  return asFloat(bits << 16);
}

SEQPAR_LANE std::uint32_t floatToBfloat(float value) {
  const std::uint32_t bits = asBits(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bits >> 16 | 0x40U;
  return (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
}

/// From the lower 16 bits.
SEQPAR_LANE float halfToFloat(std::uint32_t bits) {
  float value;
#ifdef __CUDACC__
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
#else
  const auto half = static_cast<std::uint16_t>(bits);
  toFloat(&half, seqparFloat16, &value, 1);
#endif
  return value;
}

SEQPAR_LANE std::uint32_t floatToHalf(float value) {
#ifdef __CUDACC__
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
#else
  std::uint16_t half;
  fromFloat(&value, &half, seqparFloat16, 1);
#endif
  return half;
}

}  // namespace seqpar
