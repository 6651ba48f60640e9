// Programmatic dependent launch: kernels that overlap with the previous and the next kernel of their stream. Before
// sm_90 no kernel starts early, and the functions do nothing. For other compilers than nvcc they are in the emulator,
// which runs such kernels before their predecessors (emulator::runStream()).
#pragma once

#include "kernels/arch/ptx.h"

#ifdef __CUDACC__

namespace seqpar::ptx {

/// griddepcontrol.wait. Required before reading data of earlier kernels of the stream, and before writing data that
/// they access, if this kernel may start before they end.
SEQPAR_DEVICE void griddepcontrolWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// griddepcontrol.launch_dependents. Lets the next kernel of the stream start as CTAs of this one end.
SEQPAR_DEVICE void griddepcontrolLaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace seqpar::ptx

#endif
