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

/// Has the current device give threads as much local memory as any kernel of the library wants. A later kernel that
/// wants more than all before it may wait for the device, where another rank's kernel may wait for this one.
cudaError_t growLocalMemory();

}  // namespace seqpar::test
