// Launching kernels, each launch with its own result: what an earlier call left behind must not look like its failure.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "device/cuda.h"

namespace seqpar {

/// The form of a launch.
struct LaunchShape {
  dim3 ctas, threads;
  std::size_t sharedBytes = 0;  ///< dynamic; above 48 KiB only after allowSharedMemory()
  cudaStream_t stream = nullptr;
};

/// Launches `kernel`. Throws UnhandledCudaError in the name of `what`. Arguments have exactly the types of the
/// parameters, references to them apart, so that kilobytes of them are not copied once more.
template <typename... Parameters>
void launchKernel(const char* what, void (*kernel)(Parameters...), const LaunchShape& shape,
                  const std::type_identity_t<std::remove_cv_t<Parameters>>&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.ctas;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.sharedBytes;
  config.stream = shape.stream;
  // NOLINTNEXTLINE: the runtime reads them, though its interface does not say so
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  // NOLINTNEXTLINE: kernels are named by their addresses
  checkCuda(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers), what);
}

/// Grants a kernel `bytes` of dynamic shared memory on the current device. To be called with the most that the kernel
/// is ever launched with: the setting belongs to kernel and device, so another thread with less would take it away
/// between a call and its launch. Any thread; cheap after the first call.
void allowSharedMemory(const void* kernel, std::size_t bytes);

}  // namespace seqpar
