// Deferred merges of partial results and sums of gradients on a GPU: cuDNN's results in the tensors' type stay in the
// caller's tensors or in scratch memory, are merged two or three at a time, and the last merge writes the caller's
// tensors. A complete result of one kernel is not copied.
#pragma once

#include <array>
#include <vector>

#include "attn/block/block.h"
#include "attn/exec/cuda.h"

namespace seqpar::attn {

/// Maximum number of unmerged results in scratch memory.
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

  /// Sets the scratch memory for results, and for one more set of logarithms.
  void give(const std::array<Tensor, kMostPending>& outs, const std::array<Rows, kMostPending + 1>& lses);

  /// Starts deferring `partial`, which has no keys yet. `out` and `lse`, if not null, are the later arguments of
  /// finish().
  void clear(const Partial& partial, const Tensor& out, const Rows& lse);
  bool holds(const Partial& partial) const { return target_.lse.data != nullptr && same(partial); }
  /// Memory for the next part of the deferred partial, or of the argument of mergeNow(). `byTokens`: the logarithms are
  /// stored by token, not as Rows.
  Place place(int64_t first, int64_t tokens, bool byTokens);
  Place placeNow(const Partial& into, int64_t first, int64_t tokens) const;
  /// Adds the part at `place` with the logarithms `lse` to the deferred partial. `whole`: every row has been written.
  void add(const Place& place, const softmax::RowView& lse, bool whole);
  /// Merges all parts into the partial's memory.
  void settle();
  /// Merges all parts into `out` and stops deferring.
  void finish(const float* sinks, const Tensor& out, const Rows& lse);

  /// Merges `part` into memory immediately.
  void mergeNow(const Partial& into, const softmax::Part& part);
  /// out, lse = partial, which is in memory.
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
  Tensor out_;  ///< finish()'s argument, which may hold parts
  Rows lse_;
  bool empty_ = false;  ///< the target's memory is not initialized yet
  bool whole_ = false;  ///< the first part has every row
  std::vector<softmax::Part> parts_;
  std::vector<int> slots_;  ///< slots of the parts
};

/// PendingPartial for sums of dq, dk or dv, several at a time.
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
  /// out = the sum + addends. Drops the sum.
  void finish(const Tensor& sum, std::span<const Addend> addends, const Tensor& out);
  /// total += the sum. Drops the sum.
  void addTo(const Tensor& total, const Tensor& sum);

  void addNow(const Tensor& into, const Place& place);
  /// finish() for a sum in memory.
  void finishNow(const Tensor& sum, std::span<const Addend> addends, const Tensor& out);

 private:
  struct Kept {
    Tensor target, out;  ///< `out` may hold parts and may be the target's memory
    bool empty = true;   ///< the target's memory is not initialized yet
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
