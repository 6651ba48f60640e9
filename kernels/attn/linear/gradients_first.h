// The backward of groups of heads, in two calls, on a rank that knows the gradient of its last state. Only in builds
// with CUDA.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// launchGradients() in two calls, if gradientsReadChunkStates(): GradientsPart::States launches those that write the
/// gradients of chunks' states and dInitial, which another rank may need, and GradientsPart::AfterStates the others.
int launchGradientsFirst(const Gradients& pass, const Launch& launch);

}  // namespace seqpar::attn
