// fp16 and bf16 as bits and as fp32: to nearest, ties to even, subnormals included. NaN stays NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/fifo.h"
#ifndef __CUDACC__
#include "base/convert.h"
#endif

namespace seqpar {

SEQPAR_DEVICE float asFloat(std::uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

SEQPAR_DEVICE std::uint32_t asBits(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

/// From the lower 16 bits.
SEQPAR_DEVICE float bfloatToFloat(std::uint32_t bits) {
  return asFloat(bits << 16);
}

/// Two of them, the first in the lower bits.
SEQPAR_DEVICE std::uint32_t floatsToBfloats(float low, float high) {
#ifdef __CUDACC__
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  std::uint16_t both[2];
  fromFloat(&low, &both[0], seqparBfloat16, 1);
  fromFloat(&high, &both[1], seqparBfloat16, 1);
  return both[0] | static_cast<std::uint32_t>(both[1]) << 16;
#endif
}

/// From the lower 16 bits.
SEQPAR_DEVICE float halfToFloat(std::uint32_t bits) {
  float value;
#ifdef __CUDACC__
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
#else
  const auto half = static_cast<std::uint16_t>(bits);
  toFloat(&half, seqparFloat16, &value, 1);
#endif
  return value;
}

/// Two of them, the first in the lower bits.
SEQPAR_DEVICE std::uint32_t floatsToHalves(float low, float high) {
#ifdef __CUDACC__
  std::uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  std::uint16_t both[2];
  fromFloat(&low, &both[0], seqparFloat16, 1);
  fromFloat(&high, &both[1], seqparFloat16, 1);
  return both[0] | static_cast<std::uint32_t>(both[1]) << 16;
#endif
}

}  // namespace seqpar
