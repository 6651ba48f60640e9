// Detection of device pointers, which a host communicator refuses by name. Exit status 77: no GPU.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "seqpar/seqpar.h"

namespace {

__device__ float deviceVariable[4];

int failures = 0;

void check(bool fine, const std::string& what) {
  if (fine) return;
  std::printf("failed: %s\n", what.c_str());
  ++failures;
}

void checkPointers(const std::string& where, void* device, void* pinned, void* managed, void* symbol) {
  std::vector<float> heap(4);
  float stack = 0;
  check(seqpar::isDevicePointer(device), where + ": cudaMalloc is device memory");
  check(seqpar::isDevicePointer(static_cast<char*>(device) + 100), where + ": the middle of cudaMalloc's memory too");
  check(seqpar::isDevicePointer(symbol), where + ": a __device__ variable is device memory");
  check(!seqpar::isDevicePointer(pinned), where + ": cudaMallocHost is host memory");
  check(!seqpar::isDevicePointer(managed), where + ": managed memory is host memory");
  check(!seqpar::isDevicePointer(heap.data()), where + ": the heap is host memory");
  check(!seqpar::isDevicePointer(&stack), where + ": the stack is host memory");
  check(!seqpar::isDevicePointer(nullptr), where + ": NULL is no device memory");
}

void checkRefusal(void* device) {
  seqparComm_t comm = nullptr;
  if (seqparCommInitAll(&comm, 1, nullptr) != seqparSuccess) {
    check(false, std::string("seqparCommInitAll: ") + seqparGetLastError(nullptr));
    return;
  }
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = seqparScanSum;
  params.heads = params.dk = params.dv = 2;
  float total[8] = {};
  check(seqparAllScan(device, nullptr, nullptr, nullptr, total, &params, comm, nullptr) == seqparInvalidArgument,
        "a scan of device memory on a host communicator is refused");
  check(std::strstr(seqparGetLastError(comm), "state") != nullptr, "the text names the argument");
  check(seqparSendRecv(total, sizeof(total), 0, device, sizeof(total), 0, comm, nullptr) == seqparInvalidArgument,
        "receiving to device memory on a host communicator is refused");
  check(seqparCommDestroy(comm) == seqparSuccess, "seqparCommDestroy");
}

}  // namespace

int main() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    std::printf("skipped: no GPU: %s (%s)\n", cudaGetErrorString(found), seqpar::deviceReport().c_str());
    return 77;
  }
  std::printf("%s\n", seqpar::deviceReport().c_str());
  check(seqpar::deviceReport().find("GPU") != std::string::npos, "the report counts the GPUs");
#ifdef SEQPAR_NCCL
  check(seqpar::deviceReport().find("built without NCCL") == std::string::npos, "the report looks for NCCL");
#endif

  void *device = nullptr, *pinned = nullptr, *managed = nullptr, *symbol = nullptr;
  if (cudaMalloc(&device, 1 << 12) != cudaSuccess || cudaMallocHost(&pinned, 1 << 12) != cudaSuccess ||
      cudaMallocManaged(&managed, 1 << 12) != cudaSuccess ||
      cudaGetSymbolAddress(&symbol, deviceVariable) != cudaSuccess) {
    std::printf("failed: no memory: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 1;
  }
  checkPointers("this thread", device, pinned, managed, symbol);
  std::thread(checkPointers, "a thread without a CUDA context", device, pinned, managed, symbol).join();
  checkRefusal(device);
  cudaFree(device);
  cudaFreeHost(pinned);
  cudaFree(managed);
  if (failures == 0) std::printf("ok\n");
  return failures == 0 ? 0 : 1;
}
