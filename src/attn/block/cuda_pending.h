// Partial results and sums of gradients on a GPU that are merged late: what cuDNN computes in the tensors' type waits
// in the caller's tensors or in scratch memory, is merged by twos or threes, and the last of it straight into the
// caller's tensors. What one kernel computes whole is not touched again.
#pragma once

#include <array>
#include <vector>

#include "attn/block/block.h"
#include "attn/exec/cuda.h"

namespace seqpar::attn {

/// Results that may wait in scratch memory.
inline constexpr size_t kMostPending = 2;

/// Memory for a part of a result, of rows `first` to `first` + out.tokens - 1. `out` has the strides of the whole.
struct Place {
  Tensor out;
  Rows lse;  ///< without gaps
  int64_t first = 0;
  int slot = 0;
};

class PendingPartial {
 public:
  explicit PendingPartial(CudaExec& exec) : exec_(exec) {}

  /// Room for the results of any partial, and for one more set of logarithms.
  void give(const std::array<Tensor, kMostPending>& outs, const std::array<Rows, kMostPending + 1>& lses);

  /// `partial` is what waits here from now on, and has seen nothing; finish() will be given `out` and `lse`, if not
  /// null.
  void clear(const Partial& partial, const Tensor& out, const Rows& lse);
  bool holds(const Partial& partial) const { return target_.lse.data != nullptr && same(partial); }
  /// Where the next part of what holds() is true for goes, or of `into`, with which mergeNow() is called. `byTokens`:
  /// its logarithms do not lie as Rows do.
  Place place(int64_t first, int64_t tokens, bool byTokens);
  Place placeNow(const Partial& into, int64_t first, int64_t tokens) const;
  /// The part at `place`, whose logarithms are `lse`, joins what holds() is true for. `whole`: each row has been
  /// written.
  void add(const Place& place, const softmax::RowView& lse, bool whole);
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
  Place at(const Tensor& memory, const Rows& lse, const Partial& of, int64_t first, int64_t tokens, int slot) const;
  void flush();
  void forget();
  softmax::Merge merge(const Partial& of, bool withSum) const;
  void launch(const softmax::Merge& merge);

  CudaExec& exec_;
  std::array<Tensor, kMostPending> outs_;
  std::array<Rows, kMostPending + 1> lses_;
  Partial target_;
  Tensor out_;  ///< finish()'s, where parts may lie
  Rows lse_;
  bool empty_ = false;  ///< the target's memory holds nothing yet
  bool whole_ = false;  ///< the first part has each row
  std::vector<softmax::Part> parts_;
  std::vector<int> slots_;  ///< of the parts
};

/// The same for sums of dq, dk or dv, of which several may wait.
class PendingSums {
 public:
  explicit PendingSums(CudaExec& exec) : exec_(exec) {}

  void give(const std::array<Tensor, kMostPending>& memory) { memory_ = memory; }

  void clear(const Tensor& sum, const Tensor& out);
  bool holds(const Tensor& sum) const;
  Place place(const Tensor& sum, int64_t first, int64_t tokens);
  Place placeNow(const Tensor& into, int64_t first, int64_t tokens) const;
  void add(const Tensor& sum, const Place& place);
  void settle(const Tensor& sum);
  void settleAll();
  /// out = the sum + addends. The sum is forgotten.
  void finish(const Tensor& sum, std::span<const Addend> addends, const Tensor& out);
  /// total += the sum, which is forgotten.
  void addTo(const Tensor& total, const Tensor& sum);

  void addNow(const Tensor& into, const Place& place);
  /// The same of a sum that lies in memory.
  void finishNow(const Tensor& sum, std::span<const Addend> addends, const Tensor& out);

 private:
  struct Kept {
    Tensor target, out;  ///< `out`: where parts may lie, perhaps the target's memory
    bool empty = true;   ///< the target's memory holds nothing yet
    std::vector<Place> parts;
  };

  Kept& find(const Tensor& sum);
  bool free(const Kept& kept, int slot, int64_t first, int64_t tokens) const;
  void flush(Kept& kept);
  void forget(const Tensor& sum);
  size_t partsOf(const Tensor& addend);
  void append(softmax::Sum& sum, std::span<const Addend> addends);
  static softmax::Sum sumOf(const Tensor& of);
  void launch(const softmax::Sum& sum);

  CudaExec& exec_;
  std::array<Tensor, kMostPending> memory_;
  std::vector<Kept> kept_;
};

}  // namespace seqpar::attn
