// Exec on host memory: on the caller's seqparStream_t, or on the calling thread if it is NULL.
#pragma once

#include <atomic>
#include <vector>

#include "attn/exec/exec.h"
#include "attn/exec/pool.h"

namespace seqpar::attn {

class HostExec final : public Exec {
 public:
  HostExec(int threads, seqparComm_t comm);
  ~HostExec() override;

  ThreadPool& pool() { return pool_; }

  /// Enqueues work on the caller's stream, or runs it immediately.
  void launch(std::function<void()> work) { enqueue(main_, std::move(work)); }
  /// Enqueues work on the side stream.
  void launchConcurrently(std::function<void()> work) { enqueue(side_, std::move(work)); }

  int device() const override { return SEQPAR_HOST_DEVICE; }
  std::shared_ptr<void> allocate(size_t bytes, const char* what) override;
  void begin(void* stream) override;
  void follow() override {}
  void guard(std::span<const Tensor> outputs) override;
  void finish() override;
  void awaitSideWork() noexcept override;
  void drain() noexcept override;
  void* main() const override { return main_; }
  void* side() const override { return side_; }
  bool overlaps() const override { return pool_.threads() > 1; }
  void fork() override;
  void join() override;
  void copy(const Tensor& to, const Tensor& from) override;
  void copy(const Rows& to, const Rows& from) override;
  void add(const Tensor& to, const Tensor& from) override;
  void zero(const Tensor& tensor) override;
  void fill(const Rows& rows, float value) override;

 private:
  void enqueue(seqparStream_t stream, std::function<void()> work);
  /// body(b, token) for all tokens of a tensor, distributed over the threads.
  void eachToken(const Tensor& shape, const std::function<void(int64_t b, int64_t token)>& body);

  ThreadPool pool_;
  seqparComm_t comm_;
  seqparStream_t main_ = nullptr, side_ = nullptr;
  seqparEvent_t forked_ = nullptr, joined_ = nullptr;
  std::vector<Tensor> outputs_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable idle_;
  size_t pending_ = 0;  ///< work items in flight
};

}  // namespace seqpar::attn
