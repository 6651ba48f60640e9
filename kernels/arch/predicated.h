// Predicated loads from device memory. Where the paths of a branch join, ptxas waits for the loads of both; a
// predicated load stays in flight.
#pragma once

#include "kernels/arch/ptx.h"

namespace seqpar::ptx {

/// x = *from if `loads`.
SEQPAR_DEVICE void loadGlobalIf(uint32_t& x, const uint32_t* from, bool loads) {
#ifdef __CUDA_ARCH__
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p ld.global.u32 %0, [%1];\n}"
               : "+r"(x)
               : "l"(from), "r"(loads ? 1 : 0));
#else
  if (loads) x = *from;
#endif
}
SEQPAR_DEVICE void loadGlobalIf(uint32_t& x, const uint16_t* from, bool loads) {
#ifdef __CUDA_ARCH__
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p ld.global.u16 %0, [%1];\n}"
               : "+r"(x)
               : "l"(from), "r"(loads ? 1 : 0));
#else
  if (loads) x = *from;
#endif
}
SEQPAR_DEVICE void loadGlobalPairIf(float& low, float& high, const float* from, bool loads) {
#ifdef __CUDA_ARCH__
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n@p ld.global.v2.f32 {%0, %1}, [%2];\n}"
               : "+f"(low), "+f"(high)
               : "l"(from), "r"(loads ? 1 : 0));
#else
  if (!loads) return;
  low = from[0];
  high = from[1];
#endif
}

}  // namespace seqpar::ptx
