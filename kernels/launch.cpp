#include "kernels/launch.h"

#include <map>
#include <mutex>
#include <utility>

namespace seqpar {

cudaError_t allowSharedMemory(const void* kernel, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::size_t> allowed;
  int device = 0;
  cudaError_t result = cudaGetDevice(&device);
  if (result != cudaSuccess) return result;
  const std::lock_guard lock(mutex);
  std::size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return cudaSuccess;
  result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (result == cudaSuccess) most = bytes;
  return result;
}

}  // namespace seqpar
