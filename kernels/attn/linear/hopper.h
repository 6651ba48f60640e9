// The forward's passes and the backward's first on sm_90a: bf16, dk from 80 to 128, any dv.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn::hopper {

/// Whether the current device and these kernels are for `problem`; what its pointers and strides are does not count.
bool fits(const LinearProblem& problem);

/// CTAs at once on the current device; 0: an error.
int ctasAtOnce(const LinearProblem& problem);

/// Whether these kernels do both of its passes, and its maps can be `packed`.
bool packs(const Outputs& pass);

/// Launches, as kernels/attn/linear/instances.h has them, for what fits(). False: the copy engine cannot have these
/// tensors, and nothing was launched; else `error` is a cudaError_t.
bool segmentStates(const SegmentStates& pass, int segments, bool early, const Launch& launch, int& error);
bool segmentStateGradients(const SegmentStateGradients& pass, int segments, bool early, const Launch& launch,
                           int& error);
bool outputs(const Outputs& pass, const Launch& launch, int& error);

}  // namespace seqpar::attn::hopper
