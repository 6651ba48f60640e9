// Increments a counter in stream order.
//
// Work      one thread
// Roles, Tiles, Smem, Barriers, Overlap  none
#include "kernels/nccl/mark.h"

#include "kernels/launch.h"

namespace seqpar {
namespace {

__global__ void flag(volatile std::uint32_t* counter) {
  *counter = *counter + 1;
}

}  // namespace

cudaError_t launchMark(volatile std::uint32_t* counter, cudaStream_t stream) {
  return launchKernel(flag, {1, 1, 0, stream}, counter);
}

}  // namespace seqpar
