// Merges of partial attention between peers: one CTA per channel, one launch per call.
#include "kernels/exchange/lse_merge.h"

#include "kernels/exchange/lse_merge_launch.h"
#include "kernels/fifo_cuda.cuh"
#include "kernels/launch.h"

namespace seqpar {
namespace {

template <seqparDataType_t kType, int kMost>
__global__ void __launch_bounds__(kMergeThreads)
    lseMergeKernel(const __grid_constant__ MergeTask task, const __grid_constant__ PeerView view) {
  __shared__ MergeShared shared;
  const CtaGroup group;
  LseMergeProgram<kType, kMost, CudaMemory, CtaGroup>(view, task, static_cast<int>(blockIdx.x), group, shared).run();
}

template <seqparDataType_t kType>
cudaError_t launchType(const PeerView& view, const MergeTask& task, cudaStream_t stream) {
  const LaunchShape shape{static_cast<unsigned>(task.channels), kMergeThreads, 0, stream};
  if (view.size <= 2) return launchKernel(lseMergeKernel<kType, 2>, shape, task, view);
  if (view.size <= 8) return launchKernel(lseMergeKernel<kType, 8>, shape, task, view);
  return launchKernel(lseMergeKernel<kType, kMostPeers>, shape, task, view);
}

}  // namespace

cudaError_t launchLseMerge(const PeerView& view, const MergeTask& task, cudaStream_t stream) {
  switch (task.type) {
    case seqparFloat32:
      return launchType<seqparFloat32>(view, task, stream);
    case seqparFloat16:
      return launchType<seqparFloat16>(view, task, stream);
    default:
      return launchType<seqparBfloat16>(view, task, stream);
  }
}

}  // namespace seqpar
