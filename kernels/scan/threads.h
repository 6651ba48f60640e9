// How many threads a scan's CTAs have.
#pragma once

#include "channel_layout.h"
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

}  // namespace seqpar
