// Arithmetic instructions on pairs of fp16; sm_86 and up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/arch/device.h"

namespace seqpar::ptx {

/// max.xorsign.abs.f16x2: the elementwise larger magnitude, with some sign; of a NaN and a number, the number.
SEQPAR_DEVICE std::uint32_t maxAbsF16x2(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDACC__
  std::uint32_t result;
  asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  const auto larger = [](std::uint32_t x, std::uint32_t y) {
    const auto isNan = [](std::uint32_t half) { return (half & 0x7fffU) > 0x7c00U; };
    if (isNan(x) || isNan(y)) return isNan(x) ? y : x;
    return std::max(x & 0x7fffU, y & 0x7fffU) | ((x ^ y) & 0x8000U);
  };
  return larger(a & 0xffffU, b & 0xffffU) | larger(a >> 16, b >> 16) << 16;
#endif
}

}  // namespace seqpar::ptx
