// Deferred merges of partial results and sums of gradients on a GPU: cuDNN's results in the tensors' type stay in the
// caller's tensors or in scratch memory, are merged two or three at a time, and the last merge writes the caller's
// tensors. A complete result of one kernel is not copied.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "attn/block/block.h"
#include "attn/exec/cuda.h"

namespace seqpar::attn {

/// Maximum number of unmerged results in scratch memory.
inline constexpr size_t kMostPending = 2;

/// Whether cuDNN may read and write a tensor at this address.
inline bool aligned(const void* data) {
  constexpr std::uintptr_t kAlignment = 16;
  return reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0;
}

/// Memory for a part of a result, of rows `first` to `first` + out.tokens - 1. `out` has the strides of the whole.
struct Place {
  Tensor out;
  Rows lse;  ///< without gaps
  int64_t first = 0;
  int slot = 0;
};

class PendingPartial;

/// Scratch memory for parts of partial results, with room for kMostPending parts.
class PartialScratch {
 public:
  explicit PartialScratch(CudaExec& exec) : exec_(exec) {}

  /// Sets the memory for results, and for one more set of logarithms.
  void give(const std::array<Tensor, kMostPending>& outs, const std::array<Rows, kMostPending + 1>& lses);

  /// Memory for the argument of merge(): rows `first` to `first` + tokens - 1 of `into`. Pending parts are merged
  /// first.
  Place place(const Partial& into, int64_t first, int64_t tokens);
  /// Merges `part` into a partial result in memory.
  void merge(const Partial& into, const softmax::Part& part);
  /// out, lse = partial, which is in memory.
  void finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse);
  /// Merges the pending parts, if any, and frees the memory.
  void release();

 private:
  friend class PendingPartial;

  void launch(const softmax::Merge& merge);

  CudaExec& exec_;
  std::array<Tensor, kMostPending> outs_;
  std::array<Rows, kMostPending + 1> lses_;
  PendingPartial* user_ = nullptr;  ///< the pending partial result with parts in this memory
};

/// A partial result with unmerged parts.
class PendingPartial {
 public:
  /// Starts `partial` without keys. `out` and `lse`, if not null, are the later arguments of finish().
  PendingPartial(PartialScratch& scratch, const Partial& partial, const Tensor& out, const Rows& lse);
  ~PendingPartial();
  PendingPartial(const PendingPartial&) = delete;
  PendingPartial& operator=(const PendingPartial&) = delete;

  /// Memory for the next part. `byTokens`: the logarithms are stored by token, not as Rows.
  Place place(int64_t first, int64_t tokens, bool byTokens);
  /// Adds the part at `place` with the logarithms `lse`. `whole`: every row has been written.
  void add(const Place& place, const softmax::RowView& lse, bool whole);
  /// Merges all parts into the partial's memory.
  void store();
  /// Merges all parts into `out`.
  void finish(const float* sinks, const Tensor& out, const Rows& lse);

 private:
  Place at(const Tensor& memory, const Rows& lse, int64_t first, int64_t tokens, int slot) const;
  void flush();
  void drop();
  softmax::Merge merge() const;

  PartialScratch& scratch_;
  Partial target_;
  Tensor out_;  ///< finish()'s argument, which may hold parts
  Rows lse_;
  bool empty_ = true;   ///< the target's memory is not initialized yet
  bool whole_ = false;  ///< the first part has every row
  std::vector<softmax::Part> parts_;
  std::vector<int> slots_;  ///< slots of the parts
};

class PendingSum;

/// Scratch memory for parts of sums of dq, dk or dv; several pending sums share it.
class SumScratch {
 public:
  explicit SumScratch(CudaExec& exec) : exec_(exec) {}

  void give(const std::array<Tensor, kMostPending>& memory) { memory_ = memory; }

  /// Memory for the argument of add(). Pending parts are added first.
  Place place(const Tensor& into, int64_t first, int64_t tokens);
  /// Adds the part at `place` to a sum in memory.
  void add(const Tensor& into, const Place& place);
  /// out = sum + addends, for a sum in memory.
  void finish(const Tensor& sum, std::span<const Addend> addends, const Tensor& out);

 private:
  friend class PendingSum;

  /// Whether `sum` may use these rows of a slot.
  bool free(const PendingSum& sum, int slot, int64_t first, int64_t tokens) const;
  void launch(const softmax::Sum& sum);
  /// Adds parts to a sum in memory (`empty`: to nothing) until one call can add the rest, and returns these.
  std::vector<softmax::Part> store(const Tensor& sum, std::vector<softmax::Part> parts, bool empty);

  CudaExec& exec_;
  std::array<Tensor, kMostPending> memory_;
  std::vector<PendingSum*> pending_;  ///< in the order of their construction
};

/// A sum with parts that are not added yet.
class PendingSum {
 public:
  PendingSum(SumScratch& scratch, const Tensor& sum, const Tensor& out);
  ~PendingSum();
  PendingSum(const PendingSum&) = delete;
  PendingSum& operator=(const PendingSum&) = delete;

  Place place(int64_t first, int64_t tokens);
  void add(const Place& place);
  /// Adds all parts to the sum's memory.
  void store();
  /// out = the sum + addends.
  void finish(std::span<const Addend> addends, const Tensor& out);
  /// total += the sum.
  void addTo(const Tensor& total);

 private:
  friend class SumScratch;

  void flush();

  SumScratch& scratch_;
  Tensor target_, out_;  ///< `out_` may hold parts and may be the target's memory
  bool empty_ = true;    ///< the target's memory is not initialized yet
  std::vector<Place> parts_;
};

}  // namespace seqpar::attn
