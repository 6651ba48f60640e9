// The launches of the kernels for chunks with channel decays.
#include <algorithm>

#include "kernels/attn/linear/backward/channel_group_sm90.h"
#include "kernels/attn/linear/backward/channel_groups.h"
#include "kernels/attn/linear/backward/channel_maps_sm90.h"
#include "kernels/attn/linear/backward/channel_scale_sm90.h"
#include "kernels/attn/linear/backward/channel_states_sm90.h"
#include "kernels/attn/linear/backward/channel_within_sm90.h"
#include "kernels/attn/linear/backward/instances.cuh"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::backward {
namespace {

template <class Kernel, int kCtas>
__global__ void __launch_bounds__(Kernel::kThreads, kCtas)
    channelGroups(const __grid_constant__ sm90::ChannelTask task) {
  Kernel::run(task);
}
template <class Kernel, int kCtas = 1>
cudaError_t run(const sm90::ChannelTask& task, int64_t items, int64_t ctas, void* stream, bool dependent) {
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>(items, 1, ctas)));
  return launchKernel(channelGroups<Kernel, kCtas>, grid, Kernel::kThreads, sizeof(typename Kernel::Memory), stream,
                      dependent, task);
}

cudaError_t runMaps(sm90::ChannelTask& to, const ChannelGroupsMemory& memory, const Launch& launch) {
  using Maps = sm90::ChannelMapsKernel<Bf16, kBlock>;
  using Single = sm90::ChannelMapsKernel<Bf16, sm90::kPanel>;
  if (memory.maps.states == nullptr) return cudaSuccess;
  to.maps = memory.maps;
  to.pieces = memory.pieces.count;
  to.pieceChunks = static_cast<int>(memory.pieces.tokens / kChunk);
  constexpr int kNeeded = 2;  // pieces of a head that decays probably have not forgotten
  return Single::itemsOf(to) / to.pieces * kNeeded <= launch.ctas
             ? run<Single>(to, Single::itemsOf(to), launch.ctas, launch.stream, true)
             : run<Maps>(to, Maps::itemsOf(to), launch.ctas, launch.stream, true);
}

}  // namespace

cudaError_t launchChannelGroups(const Task& task, const ChannelGroupsMemory& memory, GradientsPart part,
                                const Launch& launch) {
  static_assert(sizeof(sm90::ChunkRecord<Bf16>) == kChunkRecordBytes);
  using Scale = sm90::ChannelScaleKernel<Bf16>;
  using Gradients = sm90::ChannelGroupKernel<Bf16>;
  using Within = sm90::ChannelWithinKernel<Bf16>;
  using States = sm90::ChannelStatesKernel<Bf16, kBlock>;
  using Single = sm90::ChannelStatesKernel<Bf16, sm90::kPanel>;
  sm90::ChannelTask to;
  if (!sm90::encodeGroup<Bf16>(to, task, memory.chunks)) return cudaErrorNotSupported;
  to.records = memory.records;
  to.strong = memory.strong;
  to.leavesStrong = memory.leavesStrong;
  to.recordsVisible = memory.recordsVisible;
  const auto runAll = [&]<class Kernel, int kCtas>(int64_t ctas, bool dependent) {
    return run<Kernel, kCtas>(to, Kernel::itemsOf(to), ctas, launch.stream, dependent);
  };
  cudaError_t error = cudaSuccess;
  if (part != GradientsPart::AfterStates) {
    error = cudaMemsetAsync(to.strong, 0, sizeof(*to.strong), static_cast<cudaStream_t>(launch.stream));
    if (error != cudaSuccess) return error;
    error = runAll.template operator()<Scale, 2>(Scale::itemsOf(to), false);
  }
  if (error == cudaSuccess && part == GradientsPart::States) error = runMaps(to, memory, launch);
  if (error != cudaSuccess || part == GradientsPart::States) return error;
  error = Single::itemsOf(to) <= launch.ctas ? runAll.template operator()<Single, 1>(launch.ctas, true)
                                             : runAll.template operator()<States, 1>(launch.ctas, true);
  if (error != cudaSuccess) return error;
  error = run<Gradients>(to, sm90::groupItemsOf(to), launch.ctas, launch.stream, true);
  return error != cudaSuccess || to.leavesStrong ? error : runAll.template operator()<Within, 1>(launch.ctas, true);
}

}  // namespace seqpar::attn::backward
