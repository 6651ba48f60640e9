// Kernels that overlap with those before and after them in their stream (programmatic dependent launch).
#pragma once

#ifndef __CUDACC__
#include "kernels/attn/linear/cuda_emulator.h"
#endif

namespace seqpar::attn {

/// What a kernel does first that may be started before the one before it ends; earlier architectures have no such
/// starts.
__device__ inline void waitForPriorKernel() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// The next kernel of the stream may be started, if it can: it finds room as CTAs of this one end.
__device__ inline void letNextKernelStart() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace seqpar::attn
