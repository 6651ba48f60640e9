// Threads per CTA of a scan.
#pragma once

#include "kernels/fifo_layout.h"
#include "kernels/scan/task.h"

namespace seqpar {

/// The most threads of a call, a quarter of what an H100 or H200 runs at once, so four communicators can run
/// concurrently: with 64 registers each, 1024 threads fill an SM.
constexpr std::uint32_t kScanThreads = 32 * 1024;
constexpr std::uint32_t kMostThreads = 1024;  // of a CTA
constexpr std::uint32_t kLeastThreads = 128;

/// Threads of a CTA: one per four elements, within the limits. A thread sends up to `packets` packets before it gives
/// credit for those it has received; the rings must have space for them.
inline std::uint32_t scanThreads(const ScanTask& task, std::uint32_t packets = 1) {
  const auto channels = static_cast<std::uint32_t>(task.channels);
  std::uint32_t threads = kLeastThreads;
  while (threads < kMostThreads && 2 * threads * packets <= kSurePackets && 2 * threads * channels <= kScanThreads &&
         threads * channels < task.elements / 4) {
    threads *= 2;
  }
  return threads;
}

}  // namespace seqpar
