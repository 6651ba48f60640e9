// The kernels by the types and numbers they are built for; each (type, dk) is a translation unit of its own.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Launches of pass 1 and 3 of the forward for q, k and v of T and dk up to Dk; PerChannel for Gate::Channel. A
/// cudaError_t.
template <class T, int Dk, bool PerChannel>
int runSegmentStates(const SegmentStates& pass, int segments, const Launch& launch);
template <class T, int Dk, bool PerChannel>
int runOutputs(const Outputs& pass, const Launch& launch);
/// CTAs of these kernels on one SM at once.
template <class T, int Dk, bool PerChannel>
int forwardOccupancy();

/// The same for fp32, slow.
int runSegmentStatesFp32(const SegmentStates& pass, int segments, const Launch& launch);
int runOutputsFp32(const Outputs& pass, const Launch& launch);

}  // namespace seqpar::attn
