#include "attn/exec/pool.h"

#include "base/thread.h"

namespace seqpar::attn {

ThreadPool::ThreadPool(int threads) {
  try {
    for (int t = 1; t < threads; ++t) threads_.push_back(startThread("a rank's work", [this, t] { serve(t); }));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::each(size_t count, const std::function<void(size_t, int)>& body) {
  if (threads_.empty() || count < 2) {
    const std::lock_guard turn(turn_);
    for (size_t task = 0; task < count; ++task) body(task, 0);
    return;
  }
  const std::lock_guard turn(turn_);
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    next_ = 0;
    error_ = nullptr;
    busy_ = static_cast<int>(threads_.size());
    ++round_;
  }
  wake_.notify_all();
  work(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return busy_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

void ThreadPool::serve(int thread) {
  size_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    lock.unlock();
    work(thread);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

void ThreadPool::work(int thread) {
  for (;;) {
    const size_t task = next_++;
    if (task >= count_) return;
    try {
      (*body_)(task, thread);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

}  // namespace seqpar::attn
