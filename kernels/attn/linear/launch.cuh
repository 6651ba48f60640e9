// Kernel launches with common checks.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/arch/pdl.h"

namespace seqpar::attn {

/// Allows a kernel `bytes` of shared memory.
template <class Kernel>
cudaError_t allowShared(Kernel kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

/// Concurrent CTAs of a kernel on one SM; 0: an error.
template <class Kernel>
int occupancyOf(Kernel kernel, int threads, int sharedBytes) {
  int ctas = 0;
  if (allowShared(kernel, sharedBytes) != cudaSuccess) return 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, threads, static_cast<size_t>(sharedBytes));
  return error == cudaSuccess ? ctas : 0;
}

/// Whether the current device supports programmatic dependent launch: compute capability 9.0 and later.
inline bool startsKernelsEarly() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

/// Whether the current device has wgmma: compute capability 9.0.
inline bool hasWgmma() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0;
}

/// `dependent`: the kernel calls griddepcontrolWait() before it reads data that kernels of this library wrote, and
/// before it writes, so it may start before the previous kernel ends.
template <class... Parameters, class... Arguments>
cudaError_t launchKernel(void (*kernel)(Parameters...), dim3 grid, int threads, int sharedBytes, void* stream,
                         bool dependent, const Arguments&... arguments) {
  const cudaError_t error = allowShared(kernel, sharedBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(sharedBytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = dependent && startsKernelsEarly() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

/// A grid for CTAs that iterate over items.
inline dim3 gridOf(int64_t items, int ctas) {
  const int64_t most = ctas > 0 ? ctas : INT64_C(1) << 30;
  return dim3(static_cast<unsigned>(std::min(items, most)));
}

}  // namespace seqpar::attn
