// A CUDA runtime on the CPU, as far as what streams order goes: devices are memory of the process, streams are threads.
// Linked in place of the real one. Kernels cannot be launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace seqpar::test {

/// The number of devices that there seem to be.
constexpr int kCpuDevices = 8;

/// How streams are scheduled. Set it while there are none.
struct CpuCuda {
  /// All streams of a device except those of the lowest priority are serialized in the order of their work, as CUDA may
  /// do.
  bool oneAfterTheOther = false;
  /// Work starts up to this much later than possible.
  std::uint32_t mostDelayUs = 0;
  /// The stream that appears to be capturing although its work runs at once; the capture's id.
  cudaStream_t captured = nullptr;
  unsigned long long capture = 0;
};
CpuCuda& cpuCuda();

/// Ends the graphs that anything was kept for; returns how many things that was.
int endCpuGraphs();

/// The number of allocations, in regions; and whether one starts at `memory`.
int cpuAllocations();
bool isCpuAllocation(const void* memory);

/// Runs `work` on the stream, in order.
void onCpuStream(cudaStream_t stream, std::function<void()> work);

}  // namespace seqpar::test
