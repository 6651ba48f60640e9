// Partial results and sums of gradients on a GPU that are merged late: what cuDNN computes in the tensors' type is
// merged by twos, and the last of it straight into the caller's tensors.
#pragma once

#include <vector>

#include "attn/block/block.h"
#include "attn/exec/cuda.h"

namespace seqpar::attn {

/// Results that are merged by one kernel, so many of which may wait in scratch memory.
inline constexpr size_t kMostPending = 2;

class PendingPartial {
 public:
  explicit PendingPartial(CudaExec& exec) : exec_(exec) {}

  /// `partial` is what waits here from now on, and has seen nothing.
  void clear(const Partial& partial);
  bool holds(const Partial& partial) const { return target_.lse.data != nullptr && same(partial); }
  /// The scratch slot that the next part may use.
  size_t slot();
  /// `part` joins what holds() is true for.
  void add(const softmax::Part& part) { parts_.push_back(part); }
  /// Makes memory of it.
  void settle();
  /// Merges and forgets it.
  void finish(const float* sinks, const Tensor& out, const Rows& lse);

  /// Merges `part` into memory now.
  void mergeNow(const Partial& into, const softmax::Part& part);
  /// out, lse = partial, which lies in memory.
  void finishNow(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse);

 private:
  bool same(const Partial& partial) const {
    return partial.lse.data == target_.lse.data && partial.out.data == target_.out.data &&
           partial.out.tokens == target_.out.tokens;
  }
  softmax::Merge merge(const Partial& of, bool withSum) const;
  void launch(const softmax::Merge& merge);

  CudaExec& exec_;
  Partial target_;
  bool empty_ = false;  ///< the target's memory holds nothing yet
  std::vector<softmax::Part> parts_;
};

/// The same for dq, dk or dv.
class PendingSum {
 public:
  explicit PendingSum(CudaExec& exec) : exec_(exec) {}

  void clear(const Tensor& sum);
  bool holds(const Tensor& sum) const { return target_.data != nullptr && target_.data == sum.data; }
  size_t slot();
  void add(const softmax::Part& part) { parts_.push_back(part); }
  void settle();
  /// out = the sum + addends. The sum is forgotten.
  void finish(std::span<const Addend> addends, const Tensor& out);
  /// total += the sum, which is forgotten.
  void addTo(const Tensor& total);

  void addNow(const Tensor& into, const softmax::Part& part);
  /// The same of a sum that lies in memory.
  void finishNow(const Tensor& sum, std::span<const Addend> addends, const Tensor& out);

 private:
  static softmax::Sum sumOf(const Tensor& of);
  static void append(softmax::Sum& sum, std::span<const Addend> addends);
  void flush();
  softmax::Sum sum(const Tensor& of) const;
  void launch(const softmax::Sum& sum);

  CudaExec& exec_;
  Tensor target_;
  bool empty_ = false;
  std::vector<softmax::Part> parts_;
};

}  // namespace seqpar::attn
