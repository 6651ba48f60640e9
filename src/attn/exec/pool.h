// The compute threads of a rank on a host.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace seqpar::attn {

class ThreadPool {
 public:
  /// The caller of each() is one of the `threads`.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  /// body(task, thread) for tasks 0 to count - 1, each once, on any free thread; returns when all are done. Throws the
  /// first exception of a task. Concurrent calls are serialized.
  void each(size_t count, const std::function<void(size_t task, int thread)>& body);

 private:
  void stop();
  void serve(int thread);
  void work(int thread);

  std::vector<std::thread> threads_;
  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(size_t, int)>* body_ = nullptr;
  size_t count_ = 0;
  std::atomic<size_t> next_{0};
  size_t round_ = 0;
  int busy_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
};

}  // namespace seqpar::attn
