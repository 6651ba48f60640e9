// The backward of channel decays in one call, without launches of pass 1 before. Only in builds with CUDA.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Whether launchGradients() needs maps of segments only if decays are too strong for backward/channel_group_sm90.h,
/// which is known on the device only; launchGradientsWithMaps() then computes them if they are needed.
bool gradientsSeldomReadMaps(const LinearProblem& problem, const Segments& segments);

/// launchGradients() with maps of content Maps::PerSegment, which launchGradientsWithMaps() computes. Requires
/// gradientsSeldomReadMaps().
int launchGradientsWithMaps(const Gradients& pass, const Launch& launch);

}  // namespace seqpar::attn
