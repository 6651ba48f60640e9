// Launches of kernels that may start before the previous kernel of their stream ends (programmatic dependent launch).
#pragma once

#include "kernels/launch.h"

namespace seqpar {

/// launchKernel() of a kernel that executes griddepcontrol.wait before it accesses global memory. Before sm_90 it
/// starts as other kernels do.
template <typename... Parameters>
[[nodiscard]] cudaError_t launchEarly(void (*kernel)(Parameters...), const LaunchShape& shape,
                                      const std::type_identity_t<std::remove_cv_t<Parameters>>&... arguments) {
  int device = 0, major = 0;
  cudaError_t result = cudaGetDevice(&device);
  if (result == cudaSuccess) result = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.ctas;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.sharedBytes;
  config.stream = shape.stream;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  // NOLINTNEXTLINE: the runtime only reads them, although its interface takes void*
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  // NOLINTNEXTLINE: kernels are named by their addresses
  if (result == cudaSuccess) result = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
  if (result != cudaSuccess) (void)cudaGetLastError();
  return result;
}

}  // namespace seqpar
