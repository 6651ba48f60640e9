// Additions to device memory, without a result: gpu scope (PTX memory model).
#pragma once

#include "kernels/arch/device.h"
#include "kernels/arch/ptx.h"

namespace seqpar::ptx {

#ifdef __CUDACC__

/// red.add of fp32, which flushes subnormals to 0.
SEQPAR_DEVICE void redAddRelaxedGpu(float* to, float more) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(more) : "memory");
}

#else

/// In tests, no other thread adds to the same number.
inline void redAddRelaxedGpu(float* to, float more) {
  *to += more;
}

#endif

}  // namespace seqpar::ptx
