#include "device/launch.h"

#include <map>
#include <mutex>
#include <utility>

namespace seqpar {

void allowSharedMemory(const void* kernel, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::size_t> allowed;
  int device = 0;
  checkCuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  std::size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return;
  checkCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
            "cudaFuncSetAttribute");
  most = bytes;
}

}  // namespace seqpar
