#include <cuda_runtime_api.h>

#include "base/error.h"
#include "device/device.h"
#ifdef SEQPAR_NCCL
#include "device/nccl.h"
#endif

namespace seqpar {
namespace {

std::string ncclInWords() {
#ifdef SEQPAR_NCCL
  return ncclReport();
#else
  return "built without NCCL";
#endif
}

std::string probe() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaErrorNoDevice) return "CUDA: no GPU";
  if (result == cudaErrorInsufficientDriver) {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "CUDA: no driver";
    return concat("CUDA: the driver supports CUDA ", driver / 1000, ".", driver % 1000 / 10, ", this library needs ",
                  CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
  }
  if (result != cudaSuccess) return concat("CUDA: ", cudaGetErrorString(result));
  return concat(count, count == 1 ? " GPU, " : " GPUs, ", ncclInWords());
}

}  // namespace

std::string deviceReport() {
  static const std::string report = probe();
  return report;
}

}  // namespace seqpar
