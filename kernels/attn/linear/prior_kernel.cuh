// Programmatic dependent launch: kernels that overlap with the previous and the next kernel of their stream.
#pragma once

#ifndef __CUDACC__
#include "kernels/attn/linear/cuda_emulator.h"
#endif

namespace seqpar::attn {

/// griddepcontrol.wait. First operation of a kernel that may start before its predecessor ends; earlier architectures
/// do not support early starts.
__device__ inline void griddepcontrolWait() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// griddepcontrol.launch_dependents. Lets the next kernel of the stream start as CTAs of this one end.
__device__ inline void griddepcontrolLaunchDependents() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace seqpar::attn
