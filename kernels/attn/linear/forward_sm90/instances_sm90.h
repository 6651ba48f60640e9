// The kernels of both passes by element type; each type is a separate translation unit.
#pragma once

#include "kernels/attn/linear/forward_sm90/kernel_arguments_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// Launch options of a kernel.
struct KernelLaunch {
  int ctas;  ///< as Launch::ctas
  bool overlaps;
  void* stream;
};

/// `paired`: items have two heads. T of the problem. Return a cudaError_t.
template <class T, Pass P>
int runStates(const StatesKernel& kernel, bool paired, const KernelLaunch& on);
template <class T>
int runOutputs(const OutputsKernel& kernel, const KernelLaunch& on);

}  // namespace seqpar::attn::forward_sm90
