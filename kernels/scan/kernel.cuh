// Turns a channel program (chain.h, doubling.h, lasp1.h, oneshot.h, transposed.h and their *_fast.h) into a kernel.
//
// Work      CTA l runs channel l of the program, one launch per call; the elements are divided among the channels
// Roles     all threads alike: a thread has vecs, each sent as one packet
// Tiles     vecs of a packet (vecs.h); rows of a vec per thread
// Smem      ChannelPositions: positions of FIFOs (channel.h)
// Barriers  __syncthreads() at the ends of steps. SpanCredit counts warps instead
// Overlap   none between kernels. Waiting threads poll the memory of FIFOs: all CTAs of all ranks must run concurrently
#pragma once

#include <cuda_runtime.h>

#include "kernels/channel.h"
#include "kernels/fifo_cuda.cuh"
#include "kernels/launch.h"
#include "kernels/scan/fast_task.h"
#include "kernels/scan/task.h"
#include "kernels/scan/threads.h"

namespace seqpar {

template <class Program>
__global__ void __launch_bounds__(kMostThreads)
    scanKernel(const __grid_constant__ PeerView view, const __grid_constant__ ScanTask task) {
  __shared__ ChannelPositions positions;
  const CtaGroup group;
  Program(view, task, static_cast<int>(blockIdx.x), group, positions).run();
}

template <class Program>
cudaError_t launchScanKernel(const PeerView& view, const ScanTask& task, cudaStream_t stream,
                             std::uint32_t packets = 1) {
  return launchKernel(scanKernel<Program>, {task.channels, scanThreads(task, packets), 0, stream}, view, task);
}

/// A kernel of a program for fast vecs without flags; the task is the first parameter.
template <class Program>
__global__ void __launch_bounds__(kMostThreads)
    fastKernel(const __grid_constant__ FastTask task, const __grid_constant__ PeerView view) {
  __shared__ ChannelPositions positions;
  const CtaGroup group;
  Program(view, task, static_cast<int>(blockIdx.x), group, positions).run();
}

template <class Program>
cudaError_t launchFastKernel(const PeerView& view, const ScanTask& task, cudaStream_t stream,
                             std::uint32_t packets = 1) {
  return launchKernel(fastKernel<Program>, {task.channels, scanThreads(task, packets), 0, stream},
                      makeFastTask(view, task), view);
}

}  // namespace seqpar
