// A plan's workspace: one block of memory, divided when the plan is prepared.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attn/exec/tensor.h"

namespace seqpar::attn {

/// Allocates consecutive pieces of its memory. An object takes its memory in a function that runs twice: first on an
/// arena without memory, which only counts (its pieces are null), then on the real one.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;

  Arena() = default;
  explicit Arena(void* base) : base_(static_cast<std::byte*>(base)) {}

  void* take(size_t bytes) {
    void* const piece = base_ == nullptr || bytes == 0 ? nullptr : base_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  Tensor tensor(seqparDataType_t type, int64_t batch, int64_t tokens, int64_t heads, int64_t dim) {
    auto made = denseTensor(nullptr, type, batch, tokens, heads, dim);
    made.data = take(made.bytes());
    return made;
  }
  Rows rows(int64_t batch, int64_t heads, int64_t tokens) {
    auto made = denseRows(nullptr, batch, heads, tokens);
    made.data = static_cast<float*>(take(made.bytes()));
    return made;
  }
  /// Calls functions that take memory. All get the same bytes, so only one function's memory may be in use at a time.
  template <typename... Take>
  void alternatives(const Take&... takes) {
    const size_t start = used_;
    size_t end = start;
    ((used_ = start, takes(), end = std::max(end, used_)), ...);
    used_ = end;
  }
  /// Bytes allocated so far.
  size_t used() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  size_t used_ = 0;
};

}  // namespace seqpar::attn
