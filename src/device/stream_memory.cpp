#include "device/stream_memory.h"

#include <cuda.h>

#include "base/error.h"

namespace seqpar {
namespace {

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

WaitValue waitValue() {
  static const auto function = [] {
    constexpr unsigned kVersion = 12000;  // version of the function signature declared above
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t result =
        cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, kVersion, cudaEnableDefault, &status);
    if (result != cudaSuccess) (void)cudaGetLastError();
    const bool usable = result == cudaSuccess && status == cudaDriverEntryPointSuccess;
    return usable ? reinterpret_cast<WaitValue>(found) : nullptr;
  }();
  return function;
}

}  // namespace

bool canStreamWait() {
  return waitValue() != nullptr;
}

void streamWait(cudaStream_t stream, const std::byte* word, std::uint32_t value) {
  const CUresult result = waitValue()(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ);
  if (result != CUDA_SUCCESS) {
    fail(seqparUnhandledCudaError, "cuStreamWaitValue32: error ", static_cast<int>(result), " of the driver");
  }
}

}  // namespace seqpar
