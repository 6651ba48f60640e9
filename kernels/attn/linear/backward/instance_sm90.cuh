// Template instantiations in a generated source for sm_90.
#pragma once

#include "kernels/attn/linear/backward/gradients_sm90.h"
#include "kernels/attn/linear/backward/instances.cuh"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::backward {

template <class T, bool kChannel>
__global__ void __launch_bounds__(sm90::MapsPlace::kThreads, sm90::kMapsCtas)
    segmentMapsSm90(const __grid_constant__ Task task) {
  sm90::segmentMaps<T, kChannel>(task);
}

template <class Kernel>
__global__ void __launch_bounds__(sm90::kGradientThreads, 1)
    gradientsSm90(const __grid_constant__ typename Kernel::Arguments task) {
  Kernel::run(task);
}

template <class T, bool kChannel>
cudaError_t InstanceSm90<T, kChannel>::segmentMaps(const Task& task, int ctas, cudaStream_t stream) {
  return launchTask(segmentMapsSm90<T, kChannel>, task, ctas, sm90::MapsPlace::kThreads,
                    sizeof(sm90::MapsMemory<T, kChannel>), stream);
}

template <class T, bool kChannel>
cudaError_t InstanceSm90<T, kChannel>::supports(const Task& task) {
  if constexpr (!kChannel) {
    sm90::MappedTask mapped;
    if (!sm90::encodeMaps<T>(mapped, task)) return cudaErrorNotSupported;
  }
  return cudaSuccess;
}

template <class T, bool kChannel>
cudaError_t InstanceSm90<T, kChannel>::gradients(const Task& task, int ctas, bool overlaps, cudaStream_t stream) {
  const auto run = [&]<class Kernel>(const auto& task) {
    return launchKernel(gradientsSm90<Kernel>, dim3(static_cast<unsigned>(ctas)), sm90::kGradientThreads,
                        sizeof(typename Kernel::Memory), stream, overlaps, task);
  };
  using sm90::GradientsKernel;
  if constexpr (!kChannel) {
    sm90::MappedTask mapped;
    if (!sm90::encodeMaps<T>(mapped, task)) return cudaErrorNotSupported;
    const auto runTokens = [&]<bool kWide>() {
      if constexpr (ptx::kIsBf16<T>) {  // those of fusesInputGate() and gradientsArePaired()
        const bool gated = task.inputGates.data != nullptr;
        if (task.together == kPair) {
          return gated ? run.template operator()<GradientsKernel<T, false, true, true, false, kWide>>(mapped)
                       : run.template operator()<GradientsKernel<T, false, false, true, false, kWide>>(mapped);
        }
        if (gated) return run.template operator()<GradientsKernel<T, false, true, false, false, kWide>>(mapped);
      }
      return run.template operator()<GradientsKernel<T, false, false, false, false, kWide>>(mapped);
    };
    return itemsTogether(task) > 1 ? runTokens.template operator()<true>() : runTokens.template operator()<false>();
  } else {
    const auto runChannels = [&]<bool kTerms, bool kPaired>() {
      const cudaError_t error =
          run.template operator()<GradientsKernel<T, true, false, kPaired, false, false, kTerms>>(task);
      if (error != cudaSuccess) return error;
      using Strong = GradientsKernel<T, true, false, kPaired, true, false, kTerms>;
      return launchKernel(gradientsSm90<Strong>, dim3(static_cast<unsigned>(ctas)), sm90::kGradientThreads,
                          sizeof(typename Strong::Memory), stream, true, task);
    };
    if constexpr (ptx::kIsBf16<T>) {
      if (task.dq.scales != nullptr || task.dvOut.scales != nullptr)
        return runChannels.template operator()<true, false>();
    }
    return task.together == kPair ? runChannels.template operator()<false, true>()
                                  : runChannels.template operator()<false, false>();
  }
}

}  // namespace seqpar::attn::backward
