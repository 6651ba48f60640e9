// Terms of sums that lie ready on one GPU, added in fp32 in their order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "exchange/pieces.h"

namespace seqpar::device {

constexpr int kCombineThreads = 256;
constexpr int kMostSums = 32;
constexpr int kMostTerms = 128;

/// One region and its terms: if `existing`, first what stands there, then terms [first, first + count) of the list.
struct SumArg {
  PieceArg piece;  ///< its width also divides the terms' addresses and a row's bytes
  int first, count;
  int existing;
};

/// Softmax results: the terms of the only sum, one a member, have weights by row, which follow from their lse.
struct LseArgs {
  const float* parts = nullptr;  ///< [members][outer][heads][tokens]
  float* merged = nullptr;       ///< [outer][heads][tokens], written here
  int members = 0;
  std::uint64_t rows = 0, tokens = 0, heads = 0;
  std::uint64_t rowBytes = 0;  ///< of the region [outer][tokens][heads][rowBytes]

  SEQPAR_BOTH float at(int member, std::uint64_t row) const { return parts[member * rows + row]; }
};

/// Regions that do not overlap each other.
struct CombineArgs {
  SumArg sums[kMostSums];
  int count = 0;
  const std::byte* terms[kMostTerms];
  LseArgs lse;  ///< with kLse
};

/// Numbers of one access.
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

/// The weights of one row, from the largest lse and the sum of what the others are beside it.
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

/// The row of lse at a position of the region.
__device__ inline std::uint64_t lseRow(const LseArgs& lse, std::uint64_t position) {
  const std::uint64_t row = position / lse.rowBytes;
  const std::uint64_t token = row / lse.heads;
  const std::uint64_t outer = token / lse.tokens;
  return (outer * lse.heads + (row - token * lse.heads)) * lse.tokens + (token - outer * lse.tokens);
}

template <typename Number, typename Access, bool kLse>
__device__ void combineSum(const CombineArgs& args, const SumArg& sum) {
  constexpr int kTogether = 4;  // terms that are fetched at once
  using Values = Numbers<Number, Access>;
  const std::uint64_t units = sum.piece.bytes / sizeof(Access);
  const std::uint64_t threads = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t unit = blockIdx.x * blockDim.x + threadIdx.x; unit < units; unit += threads) {
    const std::uint64_t position = unit * sizeof(Access);
    std::byte* const out = addressOf(sum.piece, position);
    const auto add = [&](const auto& weightOf) {
      Values total{};
      bool begun = kLse;  // with weights, from zero: a term may be left out
      if (sum.existing != 0) {
        total.set(*reinterpret_cast<const Access*>(out));
        begun = true;
      }
      for (int first = 0; first < sum.count; first += kTogether) {
        Access access[kTogether] = {};
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int term = sum.first + (first + i < sum.count ? first + i : first);
          access[i] = *reinterpret_cast<const Access*>(args.terms[term] + position);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const float weight = first + i < sum.count ? weightOf(first + i) : 0;
          if (weight == 0) continue;
          Values term;
          term.set(access[i]);
#pragma unroll
          for (int n = 0; n < Values::kCount; ++n) {
            total.value[n] = begun ? total.value[n] + weight * term.value[n] : term.value[n];
          }
          begun = true;
        }
      }
      total.store(out);
    };
    if constexpr (kLse) {
      const RowWeights weights(args.lse, lseRow(args.lse, position));
      add([&](int term) { return weights.of(term); });
    } else {
      add([](int) { return 1.0F; });
    }
  }
}

__device__ inline void mergeLse(const LseArgs& lse) {
  const std::uint64_t threads = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t row = blockIdx.x * blockDim.x + threadIdx.x; row < lse.rows; row += threads) {
    lse.merged[row] = RowWeights(lse, row).merged();
  }
}

template <typename Number, bool kLse>
__global__ void __launch_bounds__(kCombineThreads) combineKernel(const __grid_constant__ CombineArgs args) {
  for (int i = 0; i < args.count; ++i) {
    const SumArg& sum = args.sums[i];
    if (sum.piece.width == 16) {
      combineSum<Number, uint4, kLse>(args, sum);
    } else {
      combineSum<Number, Number, kLse>(args, sum);
    }
  }
  if constexpr (kLse) mergeLse(args.lse);
}

}  // namespace seqpar::device
