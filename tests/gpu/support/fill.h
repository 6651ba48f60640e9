// Kernels of the tests themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace seqpar::test {

/// memory[0..count) = value.
void launchFill(float* memory, std::size_t count, float value, cudaStream_t stream);
/// Adds to *wrong the number of elements that are not `value`.
void launchCompare(const float* memory, std::size_t count, float value, unsigned* wrong, cudaStream_t stream);
/// Copies bytes between memory that the GPU addresses.
cudaError_t launchCopy(void* into, const void* from, std::size_t bytes, cudaStream_t stream);

/// launchCopy() that begins `ns` nanoseconds after its start.
cudaError_t launchLateCopy(void* into, const void* from, std::size_t bytes, std::uint64_t ns, cudaStream_t stream);

/// Reserves as much local memory for threads on the current device as any kernel of the library needs. A later kernel
/// that needs more may wait for the device, where another rank's kernel may wait for this rank.
cudaError_t growLocalMemory();

}  // namespace seqpar::test
