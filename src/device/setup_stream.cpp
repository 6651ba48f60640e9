#include "device/setup_stream.h"

#include <map>
#include <memory>
#include <mutex>

#include "device/cuda.h"

namespace seqpar {

cudaStream_t setupStream() {
  static std::mutex mutex;
  static auto& streams = *std::make_unique<std::map<int, cudaStream_t>>().release();
  int device = 0;
  checkCuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  auto [place, isNew] = streams.try_emplace(device);
  if (isNew) {
    const cudaError_t made = cudaStreamCreateWithFlags(&place->second, cudaStreamNonBlocking);
    if (made != cudaSuccess) streams.erase(place);
    checkCuda(made, "cudaStreamCreateWithFlags");
  }
  return place->second;
}

}  // namespace seqpar
