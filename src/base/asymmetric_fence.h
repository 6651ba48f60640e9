// A pair of fences of different cost, for flags that every call stores and that another thread rarely reads.
//
// If one thread stores a, executes lightFence() and loads b, and another stores b, executes heavyFence() and loads a,
// then at least one of them observes the other's store. With two sequentially consistent fences this takes some 20
// cycles of each call; here the rare side makes the system execute a fence on all processors that run this process.
#pragma once

#include <atomic>

namespace seqpar {

/// True if the system executes fences on other threads' processors (Linux membarrier).
extern const bool kFencesOthers;

inline void lightFence() noexcept {
  if (kFencesOthers) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

/// Takes some microseconds.
void heavyFence() noexcept;

}  // namespace seqpar
