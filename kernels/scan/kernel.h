// How a lane program becomes a kernel: a CTA a lane, one launch a call.
#pragma once

#include <cuda_runtime.h>

#include "channel_cuda.h"
#include "device/cuda.h"
#include "lane.h"
#include "task.h"

namespace seqpar {

/// Threads of a call, a quarter of what an H100 or H200 runs at once, so that four communicators can work beside each
/// other: with 64 registers each, 1024 threads fill a multiprocessor.
constexpr int kScanThreads = 32 * 1024;
constexpr int kMostThreads = 1024;  // of a CTA
constexpr int kLeastThreads = 256;

template <class Program>
__global__ void __launch_bounds__(kMostThreads)
    scanKernel(const __grid_constant__ PeerView view, const __grid_constant__ ScanTask task) {
  __shared__ LanePositions positions;
  const CtaGroup group;
  Program(view, task, static_cast<int>(blockIdx.x), group, positions).run();
}

template <class Program>
void launchScanKernel(const PeerView& view, const ScanTask& task, cudaStream_t stream) {
  int threads = kMostThreads;
  while (threads > kLeastThreads && threads * task.lanes > kScanThreads) threads /= 2;
  scanKernel<Program><<<task.lanes, threads, 0, stream>>>(view, task);
  checkCuda(cudaGetLastError(), "launching a scan");
}

}  // namespace seqpar
