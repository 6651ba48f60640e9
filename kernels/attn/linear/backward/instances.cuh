// The kernels of the backward pass for one type, one size of blocks and one kind of gate. CMake makes a source of
// instance.cu.in for each, so that they compile side by side.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attn/linear/backward/task.h"
#include "kernels/attn/linear/warp_ops.h"

namespace seqpar::attn::backward {

/// How many CTAs of the kernels an SM takes.
constexpr int ctasOf(int dimension) {
  return dimension == kBlock ? 1 : 2;
}

template <class T, int kDimension, bool kChannel>
struct Instance {
  static cudaError_t segmentMaps(const Task& task, int ctas, cudaStream_t stream);
  static cudaError_t gradients(const Task& task, int ctas, cudaStream_t stream);
};

/// The same for sm_90, blocks of kBlock rows and columns. The maps' kernel takes two CTAs an SM, the gradients' one.
template <class T, bool kChannel>
struct InstanceSm90 {
  static cudaError_t segmentMaps(const Task& task, int ctas, cudaStream_t stream);
  /// `early`: may start before the kernel before it ends, which is one of pass 1.
  static cudaError_t gradients(const Task& task, int ctas, bool early, cudaStream_t stream);
};

/// Launches a kernel that takes a task. Gives the launch's own error.
template <class Kernel>
cudaError_t launchTask(Kernel kernel, const Task& task, int ctas, int threads, size_t sharedBytes,
                       cudaStream_t stream) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  cudaError_t error =
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sharedBytes));
  if (error != cudaSuccess) return error;
  void* arguments[] = {const_cast<Task*>(&task)};
  return cudaLaunchKernel(function, dim3(static_cast<unsigned>(ctas)), dim3(static_cast<unsigned>(threads)), arguments,
                          sharedBytes, stream);
}

}  // namespace seqpar::attn::backward
