// CUDA's vector and 16-bit types, and its names of built-in variables and functions: from CUDA, or for other compilers
// from the emulator.
#pragma once

#include "kernels/arch/ptx.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "kernels/arch/emulator/cuda_names.h"

inline float2 __half22float2(__half2 two) {
  return {seqpar::halfToFloat(two.bits & 0xffffU), seqpar::halfToFloat(two.bits >> 16)};
}
#endif
