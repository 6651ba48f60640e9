// Launching kernels, each launch with its own result: what an earlier call left behind must not look like its failure.
// Launchers of kernels/ return what CUDA says; they know no exceptions, and their callers name them in errors.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace seqpar {

/// The form of a launch.
struct LaunchShape {
  dim3 ctas, threads;
  std::size_t sharedBytes = 0;  ///< dynamic; above 48 KiB only after allowSharedMemory()
  cudaStream_t stream = nullptr;
};

/// Launches `kernel`. Arguments have exactly the types of the parameters, references to them apart, so that kilobytes
/// of them are not copied once more. A failure is taken from the runtime, so that no later call reports it again.
template <typename... Parameters>
[[nodiscard]] cudaError_t launchKernel(void (*kernel)(Parameters...), const LaunchShape& shape,
                                       const std::type_identity_t<std::remove_cv_t<Parameters>>&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.ctas;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.sharedBytes;
  config.stream = shape.stream;
  // NOLINTNEXTLINE: the runtime reads them, though its interface does not say so
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  // NOLINTNEXTLINE: kernels are named by their addresses
  const cudaError_t result = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
  if (result != cudaSuccess) (void)cudaGetLastError();
  return result;
}

/// Grants a kernel `bytes` of dynamic shared memory on the current device. To be called with the most that the kernel
/// is ever launched with: the setting belongs to kernel and device, so another thread with less would take it away
/// between a call and its launch. Any thread; cheap after the first call.
[[nodiscard]] cudaError_t allowSharedMemory(const void* kernel, std::size_t bytes);

}  // namespace seqpar
