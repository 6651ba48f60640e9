// fp16 and bf16 as bits and as fp32: to nearest, ties to even, subnormals included. NaN stays NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/arch/device.h"

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

#ifndef __CUDACC__

/// Conversions that a GPU has instructions for.
inline std::uint16_t toBfloat(float value) {
  const std::uint32_t bits = asBits(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

inline std::uint16_t toHalf(float value) {
  const std::uint32_t bits = asBits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U | ((magnitude >> 13) & 0x03ffU);
  } else if (magnitude >= 0x47800000U) {
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {
    half = (magnitude - 0x38000000U + 0x0fffU + ((magnitude >> 13) & 1U)) >> 13;
  } else {
    // The last bit of 0.5 has the weight of the smallest subnormal, so the addition rounds.
    half = asBits(asFloat(magnitude) + 0.5F) - 0x3f000000U;
  }
  return static_cast<std::uint16_t>(half | sign);
}

inline float ofHalf(std::uint16_t bits) {
  const std::uint32_t shifted = (bits & 0x7fffU) << 13;
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  if (shifted >= 0x0f800000U) {
    return asFloat(sign | (shifted + 0x70000000U) | (shifted > 0x0f800000U ? 0x00400000U : 0U));
  }
  if (shifted >= 0x00800000U) return asFloat(sign | (shifted + 0x38000000U));
  // With the exponent of the smallest normal number, a subnormal's digits are too large by exactly that number.
  return asFloat(sign | asBits(asFloat(shifted + 0x38800000U) - asFloat(0x38800000U)));
}

#endif

/// From the lower 16 bits.
SEQPAR_DEVICE float bfloatToFloat(std::uint32_t bits) {
  return asFloat(bits << 16);
}

/// Two values, the first in the lower bits.
SEQPAR_DEVICE std::uint32_t floatsToBfloats(float low, float high) {
#ifdef __CUDACC__
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return toBfloat(low) | static_cast<std::uint32_t>(toBfloat(high)) << 16;
#endif
}

/// From the lower 16 bits.
SEQPAR_DEVICE float halfToFloat(std::uint32_t bits) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
  return value;
#else
  return ofHalf(static_cast<std::uint16_t>(bits));
#endif
}

/// Two values, the first in the lower bits.
SEQPAR_DEVICE std::uint32_t floatsToHalves(float low, float high) {
#ifdef __CUDACC__
  std::uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return toHalf(low) | static_cast<std::uint32_t>(toHalf(high)) << 16;
#endif
}

/// The nearest value in [-most, most]; NaN stays NaN.
SEQPAR_DEVICE float clamp(float value, float most) {
#ifdef __CUDACC__
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(value), "f"(most));
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(value), "f"(-most));
  return value;
#else
  return value > most ? most : value < -most ? -most : value;
#endif
}

}  // namespace seqpar
