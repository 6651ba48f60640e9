// The backward of channel decays in one call, without launches of pass 1 before. Only in builds with CUDA.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Whether launchGradients() needs maps of segments only if the tensors do not suit backward/channel_group_sm90.h;
/// launchGradientsWithMaps() then computes them if they are needed.
bool gradientsSeldomReadMaps(const LinearProblem& problem, const Segments& segments);

/// launchGradients() with maps of content Maps::PerSegment, which launchGradientsWithMaps() computes. Requires
/// gradientsSeldomReadMaps().
int launchGradientsWithMaps(const Gradients& pass, const Launch& launch);

/// launchGradientsWithMaps() with GradientsPart::States, and launchSegmentStateGradients() with `maps`, of all
/// segments: for a scan. Segments that decays of earlier ones have forgotten may have no map (kNoMap).
int launchGradientsForScan(const Gradients& pass, const SegmentStateGradients& maps, const Launch& launch);

/// Segments of `maps` with which that is fast.
Segments segmentsForScan(const LinearProblem& problem);

}  // namespace seqpar::attn
