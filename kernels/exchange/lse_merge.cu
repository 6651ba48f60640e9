// Merges of partial attention between peers: by the program of lse_merge.h, for short messages of lse_merge_short.h,
// and for the shortest ones of three and four ranks of lse_merge_teams.h.
//
// Work      one CTA per channel, one launch per call
// Roles     all threads send, then merge; the first warp resets packets and gives credit. Teams: 128 threads for each
//           other rank
// Tiles     packets of 16 bytes, a packet of each peer per thread
// Smem      MergeShared: positions of FIFOs, merged lse of two steps. TeamShared: what the teams received
// Barriers  __syncthreads() at the end of each step; teams: before the merge of each packet per thread
// Overlap   may start before the previous kernel ends. griddepcontrol.wait at the start. MergeTask::brief: then lets
//           the next kernel start
#include "kernels/exchange/lse_merge.h"

#include "kernels/arch/pdl.h"
#include "kernels/early_launch.h"
#include "kernels/exchange/lse_merge_launch.h"
#include "kernels/exchange/lse_merge_short.h"
#include "kernels/exchange/lse_merge_teams.h"
#include "kernels/fifo_cuda.cuh"

namespace seqpar {
namespace {

/// Waits for the previous kernel of the stream, and may let the next one start.
__device__ void startInOrder(const MergeTask& task) {
  ptx::griddepcontrolWait();
  // CTAs of the next kernel that wait on some SMs would share them unevenly with a long merge after this one.
  if (task.brief) ptx::griddepcontrolLaunchDependents();
}

template <class Program, int kThreads>
__global__ void __launch_bounds__(kThreads)
    mergeKernel(const __grid_constant__ MergeTask task, const __grid_constant__ PeerView view) {
  __shared__ MergeShared shared;
  const CtaGroup group;
  startInOrder(task);
  Program(view, task, static_cast<int>(blockIdx.x), group, shared).run();
}

/// A program whose constructor reads nothing that earlier kernels write.
template <class Program, int kThreads>
__global__ void __launch_bounds__(kThreads)
    shortMergeKernel(const __grid_constant__ MergeTask task, const __grid_constant__ PeerView view) {
  __shared__ typename Program::Shared shared;
  const CtaGroup group;
  Program program(view, task, static_cast<int>(blockIdx.x), group, shared);
  startInOrder(task);
  program.run();
}

template <seqparDataType_t kType, int kMost>
cudaError_t launchShort(const PeerView& view, const MergeTask& task, LaunchShape shape, cudaStream_t stream) {
  using Short = ShortMergeProgram<kType, kMost, CudaMemory, CtaGroup>;
  if constexpr (kMost == 4) {
    if (task.brief && view.size > 2) {
      using Teams = TeamMergeProgram<kType, kMost, CudaMemory, CtaGroup>;
      constexpr int kThreads = MergeTask::kBriefThreads * (kMost - 1);
      shape = {shape.ctas, static_cast<unsigned>(MergeTask::kBriefThreads * (view.size - 1)), 0, stream};
      return launchEarly(shortMergeKernel<Teams, kThreads>, shape, task, view);
    }
  }
  if constexpr (kMost <= 4) {
    if (task.threads > MergeTask::kThreads) {
      return launchEarly(shortMergeKernel<Short, MergeTask::kMostThreads>, shape, task, view);
    }
  }
  return launchEarly(shortMergeKernel<Short, MergeTask::kThreads>, shape, task, view);
}

template <seqparDataType_t kType, int kMost>
cudaError_t launchFor(const PeerView& view, const MergeTask& task, cudaStream_t stream) {
  const LaunchShape shape{static_cast<unsigned>(task.channels), static_cast<unsigned>(task.threads), 0, stream};
  if constexpr (kMost <= 8) {
    if (task.isShort()) return launchShort<kType, kMost>(view, task, shape, stream);
  }
  constexpr int kThreads = kMost <= 4 ? MergeTask::kMostThreads : MergeTask::kThreads;
  return launchEarly(mergeKernel<LseMergeProgram<kType, kMost, CudaMemory, CtaGroup>, kThreads>, shape, task, view);
}

template <seqparDataType_t kType>
cudaError_t launchType(const PeerView& view, const MergeTask& task, cudaStream_t stream) {
  if (view.size <= 2) return launchFor<kType, 2>(view, task, stream);
  if (view.size <= 4) return launchFor<kType, 4>(view, task, stream);
  if (view.size <= 8) return launchFor<kType, 8>(view, task, stream);
  return launchFor<kType, kMostPeers>(view, task, stream);
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
