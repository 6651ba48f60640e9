// Local checks of the arguments of seqparAttnForward() and seqparAttnBackward().
#pragma once

#include <array>
#include <vector>

#include "attn/problem/operator.h"
#include "base/arguments.h"

namespace seqpar::attn {

/// Buffers of one call, each checked when it is added; overlaps() at the end. Throws Error in the name of `call`.
class ArgumentCheck {
 public:
  explicit ArgumentCheck(const char* call) : call_(call) {}

  enum class Use { Input, Output };
  /// InvalidArgument for NULL with elements, negative strides, overlapping rows, and misaligned data.
  void tensor(const char* name, const Tensor& tensor, Use use);
  /// `count` fp32 elements. NULL is allowed if not `required`.
  void numbers(const char* name, const float* data, int64_t count, bool required, Use use);
  /// The plan's reserve, in its own format; with 0 bytes the pointer is not read.
  void reserve(const void* data, size_t bytes, Use use);
  /// Rejects outputs that overlap anything. Tensors with gaps, such as interleaved q, k and v in one array, are
  /// rejected only if they start at one address.
  void overlaps() const;

 private:
  struct Array {
    Buffer buffer;
    bool output = false, dense = true;
  };
  const char* call_;
  std::vector<Array> arrays_;
};

/// `reserveBytes`: the size of the data that forward leaves for backward.
void checkArguments(const char* call, const Problem& problem, const seqparAttnForwardArgs_t& args, size_t reserveBytes);
void checkArguments(const char* call, const Problem& problem, const seqparAttnBackwardArgs_t& args,
                    size_t reserveBytes);

/// The tensors that a call overwrites; empty ones are not requested.
std::array<Tensor, 3> outputsOf(const Problem& problem, const seqparAttnForwardArgs_t& args);
std::array<Tensor, 4> outputsOf(const Problem& problem, const seqparAttnBackwardArgs_t& args);

}  // namespace seqpar::attn
