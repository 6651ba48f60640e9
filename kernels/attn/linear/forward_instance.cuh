// The launches of instances.h, for a translation unit that instantiates them.
#pragma once

#include "kernels/attn/linear/instances.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/outputs.cuh"
#include "kernels/attn/linear/segment_states.cuh"

namespace seqpar::attn {

template <class T, int Dk, bool PerChannel>
int runSegmentStates(const SegmentStates& pass, int segments, const Launch& launch) {
  using Shape = KernelShape<Dk>;
  const int tiles = (pass.problem.dv + Shape::kValues - 1) / Shape::kValues;
  const int64_t items = itemCount(pass.problem, pass.heads, segments, tiles);
  if (items == 0) return cudaSuccess;
  return launchKernel(segmentStatesKernel<T, Dk, PerChannel>, gridOf(items, launch.ctas), Shape::kThreads,
                      SegmentStatesShared<Shape, PerChannel>::kBytes, launch.stream, false, pass, segments, items);
}

template <class T, int Dk, bool PerChannel>
int runOutputs(const Outputs& pass, const Launch& launch) {
  using Shape = KernelShape<Dk>;
  const int tiles = (pass.problem.dv + Shape::kValues - 1) / Shape::kValues;
  const int64_t items = itemCount(pass.problem, pass.heads, allSegments(pass.segments), tiles);
  if (items == 0) return cudaSuccess;
  return launchKernel(outputsKernel<T, Dk, PerChannel>, gridOf(items, launch.ctas), Shape::kThreads,
                      OutputsShared<Shape, PerChannel>::kBytes, launch.stream, true, pass, items);
}

template <class T, int Dk, bool PerChannel>
int forwardOccupancy() {
  using Shape = KernelShape<Dk>;
  return std::min(
      occupancyOf(segmentStatesKernel<T, Dk, PerChannel>, Shape::kThreads,
                  SegmentStatesShared<Shape, PerChannel>::kBytes),
      occupancyOf(outputsKernel<T, Dk, PerChannel>, Shape::kThreads, OutputsShared<Shape, PerChannel>::kBytes));
}

template <class T, int Dk, bool PerChannel>
int forwardShared() {
  using Shape = KernelShape<Dk>;
  return std::max(SegmentStatesShared<Shape, PerChannel>::kBytes, OutputsShared<Shape, PerChannel>::kBytes);
}

}  // namespace seqpar::attn
