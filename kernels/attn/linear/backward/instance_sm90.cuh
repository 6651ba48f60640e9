// Template instantiations in a generated source for sm_90.
#pragma once

#include "kernels/attn/linear/backward/gradients_sm90.h"
#include "kernels/attn/linear/backward/instances.cuh"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::backward {

template <class T, bool kChannel>
__global__ void __launch_bounds__(sm90::MapsPlace::kThreads, 2) segmentMapsSm90(const __grid_constant__ Task task) {
  sm90::segmentMaps<T, kChannel>(task);
}

template <class T, bool kChannel, bool kGated>
__global__ void __launch_bounds__(sm90::kGradientThreads, 1) gradientsSm90(const __grid_constant__ Task task) {
  sm90::GradientsKernel<T, kChannel, kGated>::run(task);
}

template <class T, bool kChannel>
cudaError_t InstanceSm90<T, kChannel>::segmentMaps(const Task& task, int ctas, cudaStream_t stream) {
  return launchTask(segmentMapsSm90<T, kChannel>, task, ctas, sm90::MapsPlace::kThreads,
                    sizeof(sm90::MapsMemory<T, kChannel>), stream);
}

template <class T, bool kChannel>
cudaError_t InstanceSm90<T, kChannel>::gradients(const Task& task, int ctas, bool overlaps, cudaStream_t stream) {
  constexpr int kShared = sizeof(typename sm90::GradientsKernel<T, kChannel>::Memory);
  const auto run = [&](auto kernel) {
    return launchKernel(kernel, dim3(static_cast<unsigned>(ctas)), sm90::kGradientThreads, kShared, stream, overlaps,
                        task);
  };
  if constexpr (!kChannel && ptx::kIsBf16<T>) {  // those of fusesInputGate()
    if (task.inputGates.data != nullptr) return run(gradientsSm90<T, kChannel, true>);
  }
  return run(gradientsSm90<T, kChannel, false>);
}

}  // namespace seqpar::attn::backward
