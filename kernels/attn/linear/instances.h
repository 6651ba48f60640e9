// The kernels by element type and template constants; each (type, dk) is a separate translation unit.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Launches of pass 1 and 3 of the forward for q, k and v of T and dk up to Dk; PerChannel for Gate::Channel. Return a
/// cudaError_t.
template <class T, int Dk, bool PerChannel>
int runSegmentStates(const SegmentStates& pass, int segments, const Launch& launch);
template <class T, int Dk, bool PerChannel>
int runOutputs(const Outputs& pass, const Launch& launch);
/// Concurrent CTAs of these kernels on one SM.
template <class T, int Dk, bool PerChannel>
int forwardOccupancy();
/// The most shared memory of one of their CTAs, in bytes.
template <class T, int Dk, bool PerChannel>
int forwardShared();

/// The fp32 versions, slow.
int runSegmentStatesFp32(const SegmentStates& pass, int segments, const Launch& launch);
int runOutputsFp32(const Outputs& pass, const Launch& launch);
int forwardSharedFp32(const LinearProblem& problem);

}  // namespace seqpar::attn
