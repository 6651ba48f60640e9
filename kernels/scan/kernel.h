// How a lane program becomes a kernel: a CTA a lane, one launch a call.
#pragma once

#include <cuda_runtime.h>

#include "channel_cuda.h"
#include "device/cuda.h"
#include "lane.h"
#include "task.h"

namespace seqpar {

/// Threads of a CTA. With 64 registers each, two CTAs share a multiprocessor, so that several communicators do.
constexpr int kScanThreads = 512;

template <class Program>
__global__ void __launch_bounds__(kScanThreads, 2)
    scanKernel(const __grid_constant__ PeerView view, const __grid_constant__ ScanTask task) {
  __shared__ LanePositions positions;
  const CtaGroup group;
  Program(view, task, static_cast<int>(blockIdx.x), group, positions).run();
}

template <class Program>
void launchScanKernel(const PeerView& view, const ScanTask& task, cudaStream_t stream) {
  scanKernel<Program><<<task.lanes, kScanThreads, 0, stream>>>(view, task);
  checkCuda(cudaGetLastError(), "launching a scan");
}

}  // namespace seqpar
