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
  std::uint64_t row;  ///< of its first element, for the factors
};

/// Regions that do not overlap each other.
struct CombineArgs {
  SumArg sums[kMostSums];
  int count = 0;
  const std::byte* terms[kMostTerms];
  const float* factors[kMostTerms];  ///< by term, a number for each row; null: none
  std::uint64_t rowBytes = 0;        ///< 0: no factors
};

/// Numbers of one access.
template <typename Number, typename Access>
struct Numbers {
  static constexpr int kCount = sizeof(Access) / sizeof(Number);
  float value[kCount];

  __device__ void load(const std::byte* from) {
    const Access access = *reinterpret_cast<const Access*>(from);
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

template <typename Number, typename Access>
__device__ void combineSum(const CombineArgs& args, const SumArg& sum) {
  using Values = Numbers<Number, Access>;
  const std::uint64_t units = sum.piece.bytes / sizeof(Access);
  const std::uint64_t threads = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t unit = blockIdx.x * blockDim.x + threadIdx.x; unit < units; unit += threads) {
    const std::uint64_t position = unit * sizeof(Access);
    std::byte* const out = addressOf(sum.piece, position);
    Values total{};
    bool begun = args.rowBytes != 0;  // with factors, from zero: a term may be left out
    if (sum.existing != 0) {
      total.load(out);
      begun = true;
    }
    for (int i = sum.first; i < sum.first + sum.count; ++i) {
      float factor = 1;
      if (args.rowBytes != 0) {
        factor = args.factors[i][sum.row + position / args.rowBytes];
        if (factor == 0) continue;
      }
      Values term;
      term.load(args.terms[i] + position);
#pragma unroll
      for (int n = 0; n < Values::kCount; ++n) {
        total.value[n] = begun ? total.value[n] + factor * term.value[n] : term.value[n];
      }
      begun = true;
    }
    total.store(out);
  }
}

template <typename Number>
__global__ void __launch_bounds__(kCombineThreads) combineKernel(const __grid_constant__ CombineArgs args) {
  for (int i = 0; i < args.count; ++i) {
    const SumArg& sum = args.sums[i];
    if (sum.piece.width == 16) {
      combineSum<Number, uint4>(args, sum);
    } else {
      combineSum<Number, Number>(args, sum);
    }
  }
}

/// Merging softmax results: from every part's lse of a row the factor of its row of outputs, and the merged lse.
struct LseArgs {
  const float* parts = nullptr;  ///< [members][outer][heads][tokens]
  float* merged = nullptr;       ///< [outer][heads][tokens]
  float* factors = nullptr;      ///< [members][outer][tokens][heads]
  int members = 0;
  std::uint64_t rows = 0, tokens = 0, heads = 0;
};

__global__ void lseKernel(const __grid_constant__ LseArgs args) {
  const std::uint64_t row = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= args.rows) return;
  const std::uint64_t token = row % args.tokens;
  const std::uint64_t head = row / args.tokens % args.heads;
  const std::uint64_t outer = row / args.tokens / args.heads;
  float* const factor = args.factors + (outer * args.tokens + token) * args.heads + head;

  float most = -INFINITY;
  for (int m = 0; m < args.members; ++m) {
    const float lse = args.parts[m * args.rows + row];
    most = isnan(lse) || isnan(most) ? NAN : fmaxf(most, lse);
  }
  if (most == -INFINITY) {
    for (int m = 0; m < args.members; ++m) factor[m * args.rows] = 0;
    args.merged[row] = -INFINITY;
    return;
  }
  float sum = 0;
  for (int m = 0; m < args.members; ++m) {
    const float lse = args.parts[m * args.rows + row];
    sum += lse == -INFINITY ? 0 : expf(lse - most);
  }
  for (int m = 0; m < args.members; ++m) {
    const float lse = args.parts[m * args.rows + row];
    factor[m * args.rows] = (lse == -INFINITY ? 0 : expf(lse - most)) / sum;
  }
  args.merged[row] = most + logf(sum);
}

}  // namespace seqpar::device
