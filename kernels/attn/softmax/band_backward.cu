// FlashAttention-2 (arXiv 2307.08691), Algorithm 2, in two passes without atomic additions: one owns rows and computes
// dq, the other owns columns and computes dk and dv, iterating over all query heads of its key head.
//
// Work      a CTA of 128 threads has 32 rows of a query head (bandQueries), or 32 columns of a key head (bandKeys), in
//           one band of many: grid (rows or columns / 32, heads x batch, bands)
// Roles     four warps alike: each has 8 of the owned rows or columns
// Tiles     32 rows and 32 columns x kDim, fp32; a warp's gradients are in registers
// Smem      band::sharedBytes<kDim, 4, 1 or 2>(): q, k, v and dO, weights and slopes
// Barriers  __syncthreads(): a streamed block is loaded; it is free
// Overlap   none
#include "kernels/attn/softmax/band.cuh"
#include "kernels/launch.h"

namespace seqpar::attn::softmax {
namespace {

using namespace band;

/// For a head of a batch entry.
template <int kDim>
__device__ void queriesOf(const BandProblem& args, bool fours, int64_t unit) {
  extern __shared__ float shared[];
  constexpr int kFloats = Tile<kDim>::kFloats;
  const Tile<kDim> q{shared}, dOut{shared + kFloats}, k{shared + 2 * kFloats}, v{shared + 3 * kFloats};
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  float* weights = shared + 4 * kFloats + warp * kEach * kStreamed;
  const int64_t batch = unit / args.heads, head = unit % args.heads;
  const int64_t kvHead = (head + args.phase) / args.group;
  const int headDim = static_cast<int>(args.headDim), valueDim = static_cast<int>(args.valueDim);

  for (int64_t n = blockIdx.z; n < args.count; n += gridDim.z) {
    const Band r = args.bands[n];
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kOwned;
    if (first >= r.rows) continue;
    __syncthreads();
    q.fill(args.q, batch, head, r.row + first, r.rows - first, headDim, fours);
    dOut.fill(args.dOut, batch, head, r.row + first, r.rows - first, valueDim, fours);
    float lse[kEach], delta[kEach], sums[kEach][kDim / kLanes] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t row = first + warp * kEach + i;
      lse[i] = row < r.rows ? *at(args.lse, batch, head, r.row + row) : 0;
      delta[i] = row < r.rows ? *at(args.delta, batch, head, r.row + row) : 0;
    }
    const Range range(first + r.lower, min(first + kOwned, r.rows) + r.upper, r.columns);
    for (int64_t column = range.first; column < range.last; column += kStreamed) {
      __syncthreads();
      k.fill(args.k, batch, kvHead, r.column + column, range.last - column, headDim, fours);
      v.fill(args.v, batch, kvHead, r.column + column, range.last - column, valueDim, fours);
      __syncthreads();
      float products[kEach], gradients[kEach];
      multiply(q, warp * kEach, k, headDim, products);
      multiply(dOut, warp * kEach, v, valueDim, gradients);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int64_t row = first + warp * kEach + i, j = column + lane;
        const bool seen = row < r.rows && j < range.last && j >= row + r.lower && j <= row + r.upper;
        const float score = scoreOf(products[i], args);
        weights[i * kStreamed + lane] =
            seen ? expf(score - lse[i]) * (gradients[i] - delta[i]) * slopeOf(score, args) : 0;
      }
      __syncwarp();
      accumulate(weights, k, sums);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t row = first + warp * kEach + i;
      if (row < r.rows) storeRow(args.dq, batch, head, r.row + row, headDim, sums[i], 1);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) bandQueries(const __grid_constant__ BandProblem args, bool fours) {
  const int64_t units = args.heads * args.batch;
  for (int64_t unit = blockIdx.y; unit < units; unit += gridDim.y) queriesOf<kDim>(args, fours, unit);
}

/// For a head of a batch entry.
template <int kDim>
__device__ void keysOf(const BandProblem& args, bool fours, int64_t unit) {
  extern __shared__ float shared[];
  constexpr int kFloats = Tile<kDim>::kFloats;
  const Tile<kDim> k{shared}, v{shared + kFloats}, q{shared + 2 * kFloats}, dOut{shared + 3 * kFloats};
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  float* weights = shared + 4 * kFloats + warp * kEach * kStreamed;
  float* slopes = weights + kOwned * kStreamed;
  const int64_t batch = unit / args.kvHeads, kvHead = unit % args.kvHeads;
  const int64_t firstHead = max(kvHead * args.group - args.phase, int64_t{0});
  const int64_t lastHead = min((kvHead + 1) * args.group - args.phase, args.heads);
  const int headDim = static_cast<int>(args.headDim), valueDim = static_cast<int>(args.valueDim);

  for (int64_t n = blockIdx.z; n < args.count; n += gridDim.z) {
    const Band r = args.bands[n];
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kOwned;
    if (first >= r.columns) continue;
    __syncthreads();
    k.fill(args.k, batch, kvHead, r.column + first, r.columns - first, headDim, fours);
    v.fill(args.v, batch, kvHead, r.column + first, r.columns - first, valueDim, fours);
    float keySums[kEach][kDim / kLanes] = {}, valueSums[kEach][kDim / kLanes] = {};
    const Range range(first - r.upper, min(first + kOwned, r.columns) - r.lower, r.rows);
    for (int64_t head = firstHead; head < lastHead; ++head) {
      for (int64_t row = range.first; row < range.last; row += kStreamed) {
        __syncthreads();
        q.fill(args.q, batch, head, r.row + row, range.last - row, headDim, fours);
        dOut.fill(args.dOut, batch, head, r.row + row, range.last - row, valueDim, fours);
        __syncthreads();
        const int64_t i = row + lane;
        const bool here = i < range.last;
        const float lse = here ? *at(args.lse, batch, head, r.row + i) : 0;
        const float delta = here ? *at(args.delta, batch, head, r.row + i) : 0;
        float products[kEach], gradients[kEach];
        multiply(k, warp * kEach, q, headDim, products);
        multiply(v, warp * kEach, dOut, valueDim, gradients);
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
          const int64_t j = first + warp * kEach + c;
          const bool seen = here && j < r.columns && j >= i + r.lower && j <= i + r.upper;
          const float score = scoreOf(products[c], args);
          const float weight = seen ? expf(score - lse) : 0;
          weights[c * kStreamed + lane] = weight;
          slopes[c * kStreamed + lane] = seen ? weight * (gradients[c] - delta) * slopeOf(score, args) : 0;
        }
        __syncwarp();
        accumulate(slopes, q, keySums);
        accumulate(weights, dOut, valueSums);
      }
    }
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const int64_t j = first + warp * kEach + c;
      if (j >= r.columns) break;
      storeRow(args.dk, batch, kvHead, r.column + j, headDim, keySums[c], 1);
      storeRow(args.dv, batch, kvHead, r.column + j, valueDim, valueSums[c], 1);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) bandKeys(const __grid_constant__ BandProblem args, bool fours) {
  const int64_t units = args.kvHeads * args.batch;
  for (int64_t unit = blockIdx.y; unit < units; unit += gridDim.y) keysOf<kDim>(args, fours, unit);
}

bool byFours(const BandProblem& problem) {
  return byFours(problem.q, problem.headDim) && byFours(problem.k, problem.headDim) &&
         byFours(problem.v, problem.valueDim) && byFours(problem.dOut, problem.valueDim);
}

}  // namespace

cudaError_t launchBandQueries(const BandProblem& problem, cudaStream_t stream) {
  if (problem.count == 0 || problem.batch == 0) return cudaSuccess;
  return byDim(std::max(problem.headDim, problem.valueDim), [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    return launchKernel(
        bandQueries<kDim>,
        {gridOf(problem, problem.longestRows, problem.heads), kThreads, sharedBytes<kDim, 4, 1>(), stream}, problem,
        byFours(problem));
  });
}

cudaError_t launchBandKeys(const BandProblem& problem, cudaStream_t stream) {
  if (problem.count == 0 || problem.batch == 0) return cudaSuccess;
  return byDim(std::max(problem.headDim, problem.valueDim), [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    return launchKernel(
        bandKeys<kDim>,
        {gridOf(problem, problem.longestColumns, problem.kvHeads), kThreads, sharedBytes<kDim, 4, 2>(), stream},
        problem, byFours(problem));
  });
}

cudaError_t prepareBandForward();

cudaError_t prepareBandKernels() {
  auto result = prepareBandForward();
  for (const int64_t dim : {64, 128, 256}) {
    if (result == cudaSuccess) {
      result = byDim(dim, [](auto padded) {
        constexpr int kDim = decltype(padded)::value;
        const auto queries = cudaFuncSetAttribute(bandQueries<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  sharedBytes<kDim, 4, 1>());
        if (queries != cudaSuccess) return queries;
        return cudaFuncSetAttribute(bandKeys<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    sharedBytes<kDim, 4, 2>());
      });
    }
  }
  return result;
}

}  // namespace seqpar::attn::softmax
