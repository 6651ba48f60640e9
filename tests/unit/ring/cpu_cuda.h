// A CUDA runtime on the CPU, as far as what streams order goes: devices are memory of the process, streams are threads.
// Linked in place of the real one. Kernels cannot be launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace seqpar::test {

/// The number of devices that there seem to be.
constexpr int kCpuDevices = 8;

/// How streams are served. Set while there are none.
struct CpuCuda {
  /// All streams of a device but those of the lowest priority wait for each other, in the order in which they were
  /// given work, as CUDA may do.
  bool oneAfterTheOther = false;
  /// Work begins up to this much later than it could.
  std::uint32_t mostDelayUs = 0;
  /// The stream that looks as if it were being captured, though its work runs at once; a capture's number.
  cudaStream_t captured = nullptr;
  unsigned long long capture = 0;
};
CpuCuda& cpuCuda();

/// Ends the graphs that anything was kept for; returns how many things that was.
int endCpuGraphs();

/// How much memory is allocated, in regions; whether one begins at `memory`.
int cpuAllocations();
bool isCpuAllocation(const void* memory);

/// Runs `work` on the stream, in order.
void onCpuStream(cudaStream_t stream, std::function<void()> work);

}  // namespace seqpar::test
