// How a lane program becomes a kernel: a CTA a lane, one launch a call.
#pragma once

#include <cuda_runtime.h>

#include "channel_cuda.h"
#include "device/cuda.h"
#include "lane.h"
#include "plain_task.h"
#include "task.h"

namespace seqpar {

/// The most threads of a call, a quarter of what an H100 or H200 runs at once, so that four communicators can work
/// beside each other: with 64 registers each, 1024 threads fill a multiprocessor.
constexpr std::uint32_t kScanThreads = 32 * 1024;
constexpr std::uint32_t kMostThreads = 1024;  // of a CTA
constexpr std::uint32_t kLeastThreads = 128;

/// Threads of a CTA: one for four elements, as far as the limits allow. A thread sends up to `lines` lines before it
/// gives credit for those it has taken: they must have room.
inline std::uint32_t scanThreads(const ScanTask& task, std::uint32_t lines = 1) {
  const auto lanes = static_cast<std::uint32_t>(task.lanes);
  std::uint32_t threads = kLeastThreads;
  while (threads < kMostThreads && 2 * threads * lines <= kSureLines && 2 * threads * lanes <= kScanThreads &&
         threads * lanes < task.elements / 4) {
    threads *= 2;
  }
  return threads;
}

template <class Program>
__global__ void __launch_bounds__(kMostThreads)
    scanKernel(const __grid_constant__ PeerView view, const __grid_constant__ ScanTask task) {
  __shared__ LanePositions positions;
  const CtaGroup group;
  Program(view, task, static_cast<int>(blockIdx.x), group, positions).run();
}

template <class Program>
void launchScanKernel(const PeerView& view, const ScanTask& task, cudaStream_t stream, std::uint32_t lines = 1) {
  scanKernel<Program><<<task.lanes, scanThreads(task, lines), 0, stream>>>(view, task);
  checkCuda(cudaGetLastError(), "launching a scan");
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
  plainKernel<Program><<<task.lanes, scanThreads(task, lines), 0, stream>>>(makePlainTask(view, task), view);
  checkCuda(cudaGetLastError(), "launching a scan");
}

}  // namespace seqpar
