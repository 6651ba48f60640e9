// How a lane program becomes a kernel: a CTA a lane, one launch a call.
#pragma once

#include <cuda_runtime.h>

#include "channel_cuda.h"
#include "device/launch.h"
#include "lane.h"
#include "plain_task.h"
#include "task.h"
#include "threads.h"

namespace seqpar {

template <class Program>
__global__ void __launch_bounds__(kMostThreads)
    scanKernel(const __grid_constant__ PeerView view, const __grid_constant__ ScanTask task) {
  __shared__ LanePositions positions;
  const CtaGroup group;
  Program(view, task, static_cast<int>(blockIdx.x), group, positions).run();
}

template <class Program>
void launchScanKernel(const PeerView& view, const ScanTask& task, cudaStream_t stream, std::uint32_t lines = 1) {
  launchKernel("scanKernel", scanKernel<Program>, {task.lanes, scanThreads(task, lines), 0, stream}, view, task);
}

/// A kernel of a program for plain cells without flags, whose task lies in front.
template <class Program>
__global__ void __launch_bounds__(kMostThreads)
    plainKernel(const __grid_constant__ PlainTask task, const __grid_constant__ PeerView view) {
  __shared__ LanePositions positions;
  const CtaGroup group;
  Program(view, task, static_cast<int>(blockIdx.x), group, positions).run();
}

template <class Program>
void launchPlainKernel(const PeerView& view, const ScanTask& task, cudaStream_t stream, std::uint32_t lines = 1) {
  launchKernel("plainKernel", plainKernel<Program>, {task.lanes, scanThreads(task, lines), 0, stream},
               makePlainTask(view, task), view);
}

}  // namespace seqpar
