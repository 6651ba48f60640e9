// Kernel launches that return their own result: an error that an earlier call left behind must not look like theirs.
// The launchers of kernels/ return CUDA's result and throw nothing; their callers name the launch in errors.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace seqpar {

/// Launch configuration.
struct LaunchShape {
  dim3 ctas, threads;
  std::size_t sharedBytes = 0;  ///< dynamic; above 48 KiB only after allowSharedMemory()
  cudaStream_t stream = nullptr;
};

/// Launches `kernel`. Arguments have exactly the parameter types, except for references, so kilobytes of arguments are
/// not copied again. A failure is cleared from the runtime, so no later call reports it again.
template <typename... Parameters>
[[nodiscard]] cudaError_t launchKernel(void (*kernel)(Parameters...), const LaunchShape& shape,
                                       const std::type_identity_t<std::remove_cv_t<Parameters>>&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.ctas;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.sharedBytes;
  config.stream = shape.stream;
  // NOLINTNEXTLINE: the runtime only reads them, although its interface takes void*
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  // NOLINTNEXTLINE: kernels are named by their addresses
  const cudaError_t result = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
  if (result != cudaSuccess) (void)cudaGetLastError();
  return result;
}

/// Allows a kernel `bytes` of dynamic shared memory on the current device. Call it with the largest size that the
/// kernel is ever launched with: the setting belongs to kernel and device, so a smaller value set by another thread
/// would take effect between a call and its launch. Any thread; cheap after the first call.
[[nodiscard]] cudaError_t allowSharedMemory(const void* kernel, std::size_t bytes);

}  // namespace seqpar
