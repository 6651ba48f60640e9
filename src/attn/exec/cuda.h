// Exec on a CUDA device: the caller's stream, and one of the plan's own beside it. Everything may be captured.
#pragma once

#include <optional>

#include "attn/exec/exec.h"
#include "device/cuda.h"
#include "kernels/attn/softmax/args.h"

namespace seqpar::attn {

/// What kernels get for a tensor, and for rows.
softmax::View viewOf(const Tensor& tensor);
softmax::RowView viewOf(const Rows& rows);

class CudaExec final : public Exec {
 public:
  explicit CudaExec(int device);

  cudaStream_t stream() const { return main_; }

  int device() const override { return device_; }
  std::shared_ptr<void> allocate(size_t bytes) override;
  void begin(void* stream) override;
  /// A kernel that fails, fails the caller's next CUDA call; nothing is left to be guarded.
  void guard(std::span<const Tensor>) override {}
  void finish() override;
  void drain() noexcept override;
  void* main() const override { return main_; }
  void* side() const override { return side_.get(); }
  void fork() override;
  void join() override;
  void copy(const Tensor& to, const Tensor& from) override;
  void copy(const Rows& to, const Rows& from) override;
  void add(const Tensor& to, const Tensor& from) override;
  void zero(const Tensor& tensor) override;
  void fill(const Rows& rows, float value) override;

 private:
  int device_;
  cudaStream_t main_ = nullptr;
  StreamHandle side_;
  EventHandle forked_, joined_, finished_;
  std::optional<CurrentDevice> current_;
  bool ran_ = false;
};

std::unique_ptr<Exec> makeCudaExec(int device);

}  // namespace seqpar::attn
