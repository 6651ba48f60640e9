// Template instantiations in a generated source.
#pragma once

#include "kernels/attn/linear/backward/gradients.h"
#include "kernels/attn/linear/backward/instances.cuh"

namespace seqpar::attn::backward {

template <class T, int kDimension, bool kChannel>
__global__ void __launch_bounds__(warpsOf(kDimension) * 32, ctasOf(kDimension))
    segmentMapsKernel(const __grid_constant__ Task task) {
  segmentMaps<T, kDimension, kDimension, kChannel, true>(task);
}

template <class T, int kDimension, bool kChannel>
__global__ void __launch_bounds__(warpsOf(kDimension) * 32, ctasOf(kDimension))
    gradientsKernel(const __grid_constant__ Task task) {
  GradientsKernel<T, kDimension, kDimension, kChannel>::run(task);
}

template <class T, int kDimension, bool kChannel>
cudaError_t Instance<T, kDimension, kChannel>::segmentMaps(const Task& task, int ctas, cudaStream_t stream) {
  return launchTask(segmentMapsKernel<T, kDimension, kChannel>, task, ctas, warpsOf(kDimension) * 32,
                    kItemBytes + sizeof(SweepMemory<T, kDimension, kDimension, kChannel>), stream);
}

template <class T, int kDimension, bool kChannel>
cudaError_t Instance<T, kDimension, kChannel>::gradients(const Task& task, int ctas, cudaStream_t stream) {
  return launchTask(gradientsKernel<T, kDimension, kChannel>, task, ctas, warpsOf(kDimension) * 32, sharedBytes(),
                    stream);
}

template <class T, int kDimension, bool kChannel>
size_t Instance<T, kDimension, kChannel>::sharedBytes() {
  return kItemBytes + sizeof(GradientsMemory<T, kDimension, kDimension>);  // GradientsKernel: no less than a sweep's
}

}  // namespace seqpar::attn::backward
