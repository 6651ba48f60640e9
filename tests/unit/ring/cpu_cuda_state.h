// The state of the CPU's CUDA for cpu_cuda_calls.cpp: streams that are threads, events, memory.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_cuda.h"

namespace seqpar::test {

inline constexpr std::chrono::microseconds kPollInterval{20};

/// Executes work in order on a thread.
class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    enqueue({});
    thread_.join();
  }

  void enqueue(std::function<void()> work);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

using Done = std::shared_ptr<std::atomic<bool>>;

void await(const Done& done);
/// Set when the stream's work so far is done.
Done mark(cudaStream_t stream);

/// Of the calling thread.
int& currentDevice();
/// The worker of all streams of a device that are served one after the other.
std::shared_ptr<Worker> sharedWorker(int device);

cudaError_t allocate(void** memory, std::size_t bytes);
cudaError_t release(void* memory);
/// Small copies may be of words that other threads poll.
void copyBytes(void* into, const void* from, std::size_t bytes);

/// What graphs keep, and what to call with it when they end.
std::vector<std::pair<cudaHostFn_t, void*>>& keptForGraphs();

}  // namespace seqpar::test

struct CUstream_st {
  std::shared_ptr<seqpar::test::Worker> worker;
};

struct CUevent_st {
  std::mutex mutex;
  seqpar::test::Done latest = std::make_shared<std::atomic<bool>>(true);

  seqpar::test::Done get() {
    const std::lock_guard lock(mutex);
    return latest;
  }
};
