// Exec on a CUDA device: the caller's stream, and a side stream of the plan. All work can be captured.
#pragma once

#include <optional>

#include "attn/exec/exec.h"
#include "device/cuda.h"
#include "device/stream_order.h"
#include "kernels/attn/softmax/args.h"

namespace seqpar::attn {

/// Kernel arguments for a tensor, and for rows.
softmax::View viewOf(const Tensor& tensor);
softmax::RowView viewOf(const Rows& rows);

class CudaExec final : public Exec {
 public:
  /// `shared`: other ranks of this process use the device. side() is then the caller's stream: a GPU serializes streams
  /// beyond its few queues, and one rank's kernel would wait behind another's that waits for it. `rank`: this rank.
  CudaExec(int device, bool shared, int rank);

  cudaStream_t stream() const { return main_; }
  /// Differs between the ranks of this process that share the device; 0 without such ranks.
  int sharer() const { return sharer_; }

  int device() const override { return device_; }
  std::shared_ptr<void> allocate(size_t bytes, const char* what) override;
  void begin(void* stream) override;
  void follow() override;
  /// No-op: a failing kernel makes the caller's next CUDA call fail.
  void guard(std::span<const Tensor>) override {}
  void finish() override;
  void awaitSideWork() noexcept override {}
  void drain() noexcept override;
  void* main() const override { return main_; }
  void* side() const override { return side_ ? side_.get() : main_; }
  void fork() override;
  void join() override;
  void copy(const Tensor& to, const Tensor& from) override;
  void copy(const Rows& to, const Rows& from) override;
  void add(const Tensor& to, const Tensor& from) override;
  void zero(const Tensor& tensor) override;
  void fill(const Rows& rows, float value) override;

 private:
  int device_, sharer_;
  cudaStream_t main_ = nullptr;
  StreamHandle side_;  ///< none on a device that ranks share
  EventHandle forked_, joined_;
  StreamOrder order_;  ///< of the passes, which use one workspace
  std::optional<CurrentDevice> current_;
};

}  // namespace seqpar::attn
