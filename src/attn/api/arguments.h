// The arguments of seqparAttnForward() and seqparAttnBackward(), checked on this rank alone.
#pragma once

#include <vector>

#include "attn/problem/operator.h"
#include "base/arguments.h"

namespace seqpar::attn {

/// Buffers of one call, each checked when it is added; overlaps() at the end. Throws Error in the name of `call`.
class ArgumentCheck {
 public:
  explicit ArgumentCheck(const char* call) : call_(call) {}

  enum class Use { Input, Output };
  /// NULL with elements, negative strides, rows that overlap, and misaligned data are InvalidArgument.
  void tensor(const char* name, const seqparAttnTensor_t& given, const Tensor& view, Use use);
  /// `count` numbers of fp32. NULL is allowed if not `required`.
  void numbers(const char* name, const float* data, int64_t count, bool required, Use use);
  /// Memory in the plan's own form; no bytes: not read.
  void reserve(const void* data, size_t bytes, Use use);
  /// Refuses outputs that overlap anything. Tensors with gaps, such as q, k and v side by side in one array, are only
  /// refused where they begin at the same place.
  void overlaps() const;

 private:
  struct Array {
    Buffer buffer;
    bool output = false, dense = true;
  };
  const char* call_;
  std::vector<Array> arrays_;
};

/// `reserveBytes`: what the plan leaves from forward to backward.
seqparAttnForwardArgs_t checkForward(const char* call, const Problem& problem, const seqparAttnForwardArgs_t* given,
                                     size_t reserveBytes);
seqparAttnBackwardArgs_t checkBackward(const char* call, const Problem& problem, const seqparAttnBackwardArgs_t* given,
                                       size_t reserveBytes);

}  // namespace seqpar::attn
