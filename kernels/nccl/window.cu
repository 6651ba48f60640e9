// Queries the addresses of a symmetric window.
//
// Work      one warp; a lane has every 32nd peer
// Roles, Tiles, Smem, Barriers, Overlap  none
#include <nccl.h>
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>

#include "kernels/launch.h"
#include "kernels/nccl/window.h"

namespace seqpar {
namespace {

__global__ void findPeers(ncclWindow_t window, int peers, void** pointers) {
  for (int peer = static_cast<int>(threadIdx.x); peer < peers; peer += static_cast<int>(blockDim.x)) {
    pointers[peer] = ncclGetLsaPointer(window, 0, peer);
  }
}

}  // namespace

cudaError_t launchFindPeers(ncclWindow_t window, int peers, void** pointers, cudaStream_t stream) {
  return launchKernel(findPeers, {1, 32, 0, stream}, window, peers, pointers);
}

}  // namespace seqpar
#endif
