// Merges of partial attention between peers, by the program of lse_merge.h or, for short messages, of
// lse_merge_short.h.
//
// Work      one CTA per channel, one launch per call
// Roles     all threads send, then merge; the first warp resets packets and gives credit
// Tiles     packets of 16 bytes, a packet of each peer per thread
// Smem      MergeShared: positions of FIFOs, merged lse of two steps
// Barriers  __syncthreads() at the end of each step
// Overlap   may start before the previous kernel ends. griddepcontrol.wait at the start. MergeTask::brief: then lets
//           the next kernel start
#include "kernels/exchange/lse_merge.h"

#include "kernels/arch/pdl.h"
#include "kernels/early_launch.h"
#include "kernels/exchange/lse_merge_launch.h"
#include "kernels/exchange/lse_merge_short.h"
#include "kernels/fifo_cuda.cuh"

namespace seqpar {
namespace {

/// Waits for the previous kernel of the stream, and may let the next one start.
__device__ void startInOrder(const MergeTask& task) {
  ptx::griddepcontrolWait();
  // CTAs of the next kernel that wait on some SMs would share them unevenly with a long merge after this one.
  if (task.brief) ptx::griddepcontrolLaunchDependents();
}

template <class Program>
__global__ void __launch_bounds__(MergeTask::kThreads)
    mergeKernel(const __grid_constant__ MergeTask task, const __grid_constant__ PeerView view) {
  __shared__ MergeShared shared;
  const CtaGroup group;
  startInOrder(task);
  Program(view, task, static_cast<int>(blockIdx.x), group, shared).run();
}

template <seqparDataType_t kType, int kMost>
constexpr auto kMergeKernel = mergeKernel<LseMergeProgram<kType, kMost, CudaMemory, CtaGroup>>;
template <seqparDataType_t kType, int kMost>
constexpr auto kShortMergeKernel = mergeKernel<ShortMergeProgram<kType, kMost, CudaMemory, CtaGroup>>;

template <seqparDataType_t kType>
cudaError_t launchType(const PeerView& view, const MergeTask& task, cudaStream_t stream) {
  const LaunchShape shape{static_cast<unsigned>(task.channels), static_cast<unsigned>(task.threads()), 0, stream};
  if (view.size <= 8 && task.isShort(view.size)) {
    if (view.size <= 2) return launchEarly(kShortMergeKernel<kType, 2>, shape, task, view);
    if (view.size <= 4) return launchEarly(kShortMergeKernel<kType, 4>, shape, task, view);
    return launchEarly(kShortMergeKernel<kType, 8>, shape, task, view);
  }
  if (view.size <= 2) return launchEarly(kMergeKernel<kType, 2>, shape, task, view);
  if (view.size <= 4) return launchEarly(kMergeKernel<kType, 4>, shape, task, view);
  if (view.size <= 8) return launchEarly(kMergeKernel<kType, 8>, shape, task, view);
  return launchEarly(kMergeKernel<kType, kMostPeers>, shape, task, view);
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
