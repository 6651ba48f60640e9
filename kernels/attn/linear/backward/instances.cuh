// The kernels of the backward pass for one type, block size and kind of gate. CMake generates one source from
// instance.cu.in for each, so that they compile in parallel.
#pragma once

#include <cuda_runtime.h>

#include "kernels/arch/mma.h"
#include "kernels/attn/linear/backward/chunk_states.h"

namespace seqpar::attn::backward {

/// CTAs of the kernels per SM.
constexpr int ctasOf(int dimension) {
  return dimension == kBlock ? 1 : 2;
}

template <class T, int kDimension, bool kChannel>
struct Instance {
  static cudaError_t segmentMaps(const Task& task, int ctas, cudaStream_t stream);
  static cudaError_t gradients(const Task& task, int ctas, cudaStream_t stream);
  static size_t sharedBytes();  ///< the most of a CTA
};

/// The sm_90 versions, for blocks of kBlock rows and columns. An SM runs two CTAs of the maps' kernel, or one of the
/// gradients'.
template <class T, bool kChannel>
struct InstanceSm90 {
  static cudaError_t segmentMaps(const Task& task, int ctas, cudaStream_t stream);
  /// Whether gradients() supports the layout of the tensors: otherwise cudaErrorNotSupported.
  static cudaError_t supports(const Task& task);
  /// `overlaps`: may start before the previous kernel, one of pass 1, ends.
  static cudaError_t gradients(const Task& task, int ctas, bool overlaps, cudaStream_t stream);
};

/// The sm_90 kernels for groups of heads (group_sm90.h): the states of all chunks, then all gradients; or a part.
/// launch.ctas: the most CTAs. cudaErrorNotSupported: the TMA does not support the layout of the tensors.
cudaError_t launchGroups(const Task& task, const ChunkStates& chunks, GradientsPart part, const Launch& launch);

/// The memory of launchChannelGroups().
struct ChannelGroupsMemory {
  char* records;
  ChunkStates chunks;
  uint32_t* strong;                             ///< afterwards not 0 if decays of a chunk are strong
  Visible recordsVisible = Visible::AfterWait;  ///< ChannelTask::recordsVisible
  StateMaps maps;   ///< with GradientsPart::States: in reverse, for launchGradientsForScan(); NULL: not written
  Segments pieces;  ///< of `maps`
  bool leavesStrong = false;  ///< ChannelTask::leavesStrong
};
/// The sm_90 kernels for keys of up to 256 channels with channel decays (channel_group_sm90.h): all gradients.
/// cudaErrorNotSupported: as above.
cudaError_t launchChannelGroups(const Task& task, const ChannelGroupsMemory& memory, GradientsPart part,
                                const Launch& launch);

/// Launches a kernel with a task. Returns the launch's own error.
template <class Kernel>
cudaError_t launchTask(Kernel kernel, const Task& task, int ctas, int threads, size_t sharedBytes,
                       cudaStream_t stream) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  cudaError_t error =
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sharedBytes));
  if (error != cudaSuccess) return error;
  void* arguments[] = {const_cast<Task*>(&task)};
  return cudaLaunchKernel(function, dim3(static_cast<unsigned>(ctas)), dim3(static_cast<unsigned>(threads)), arguments,
                          sharedBytes, stream);
}

}  // namespace seqpar::attn::backward
