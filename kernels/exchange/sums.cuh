// Adds terms in fp32, in their order, and computes the weights of softmax results.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/exchange/lse_args.h"
#include "seqpar/types.h"

namespace seqpar::device {

/// Calls act() with a value of the type.
template <typename Act>
auto withNumber(seqparDataType_t type, const Act& act) {
  switch (type) {
    case seqparFloat32:
      return act(float{});
    case seqparFloat16:
      return act(__half{});
    default:
      return act(__nv_bfloat16{});
  }
}

/// Elements of one access.
template <typename Number, typename Access>
struct Numbers {
  static constexpr int kCount = sizeof(Access) / sizeof(Number);
  float value[kCount];

  __device__ void set(const Access& access) {
    const auto* numbers = reinterpret_cast<const Number*>(&access);
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = static_cast<float>(numbers[i]);
  }
  __device__ void store(std::byte* into) const {
    Access access;
    auto* numbers = reinterpret_cast<Number*>(&access);
#pragma unroll
    for (int i = 0; i < kCount; ++i) numbers[i] = static_cast<Number>(value[i]);
    *reinterpret_cast<Access*>(into) = access;
  }
};

/// Weights of one row: exp(lse - max) over their sum.
class RowWeights {
 public:
  __device__ RowWeights(const LseArgs& lse, std::uint64_t row) : lse_(lse), row_(row) {
    for (int m = 0; m < lse.members; ++m) {
      const float each = lse.at(m, row);
      most_ = isnan(each) || isnan(most_) ? NAN : fmaxf(most_, each);
    }
    for (int m = 0; m < lse.members; ++m) sum_ += share(m);
  }
  __device__ float of(int member) const { return most_ == -INFINITY ? 0 : share(member) / sum_; }
  __device__ float merged() const { return most_ == -INFINITY ? most_ : most_ + logf(sum_); }

 private:
  __device__ float share(int member) const {
    const float each = lse_.at(member, row_);
    return each == -INFINITY ? 0 : expf(each - most_);
  }

  const LseArgs& lse_;
  std::uint64_t row_;
  float most_ = -INFINITY, sum_ = 0;
};

/// The row of lse that belongs to a position of the region.
SEQPAR_DEVICE std::uint64_t lseRow(const LseArgs& lse, std::uint64_t position) {
  const std::uint64_t row = position / lse.rowBytes;
  const std::uint64_t token = row / lse.heads;
  const std::uint64_t outer = token / lse.tokens;
  return (outer * lse.heads + (row - token * lse.heads)) * lse.tokens + (token - outer * lse.tokens);
}

/// Sums of kVec16s accesses of a region; has[0] is true. out(u) is the address of access u, termAt(i, u) the address of
/// its term i, and weightOf(i, u) the term's weight. The sum starts with the region's content if `existing`, otherwise
/// with 0 if `started`, otherwise with the first term.
template <typename Number, typename Access, int kVec16s, typename Out, typename TermAt, typename WeightOf>
SEQPAR_DEVICE void addTerms(const bool (&has)[kVec16s], bool existing, bool started, int count, const Out& out,
                            const TermAt& termAt, const WeightOf& weightOf) {
  constexpr int kTogether = 4;  // terms loaded at once
  using Values = Numbers<Number, Access>;
  Values total[kVec16s] = {};
  if (existing) {
#pragma unroll
    for (int u = 0; u < kVec16s; ++u) total[u].set(*reinterpret_cast<const Access*>(out(has[u] ? u : 0)));
    started = true;
  }
  for (int first = 0; first < count; first += kTogether) {
    Access access[kTogether][kVec16s];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int term = first + i < count ? first + i : first;
#pragma unroll
      for (int u = 0; u < kVec16s; ++u) {
        access[i][u] = *reinterpret_cast<const Access*>(termAt(term, has[u] ? u : 0));
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i >= count) break;
#pragma unroll
      for (int u = 0; u < kVec16s; ++u) {
        const float weight = weightOf(first + i, u);
        if (weight == 0) continue;
        Values term;
        term.set(access[i][u]);
#pragma unroll
        for (int n = 0; n < Values::kCount; ++n) {
          total[u].value[n] = started ? total[u].value[n] + weight * term.value[n] : term.value[n];
        }
      }
      started = true;
    }
  }
#pragma unroll
  for (int u = 0; u < kVec16s; ++u) {
    if (has[u]) total[u].store(out(u));
  }
}

}  // namespace seqpar::device
