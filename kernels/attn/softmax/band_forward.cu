// FlashAttention-2 (arXiv 2307.08691), Algorithm 1, for any band, type and head dimension, in fp32 arithmetic.
//
// Work      a CTA of 128 threads has 32 rows of a query head in one band of many: grid (rows / 32, heads x batch,
//           bands)
// Roles     four warps alike: each has 8 rows
// Tiles     32 rows and 32 columns x kDim, fp32; a warp's outputs are in registers
// Smem      band::sharedBytes<kDim, 3, 1>(): q, k and v, weights
// Barriers  __syncthreads(): a block of columns is loaded; it is free
// Overlap   none
#include "kernels/attn/softmax/band.cuh"
#include "kernels/launch.h"

namespace seqpar::attn::softmax {
namespace {

using namespace band;

/// For a head of a batch entry.
template <int kDim>
__device__ void forwardOf(const BandProblem& args, bool fours, int64_t unit) {
  extern __shared__ float shared[];
  const Tile<kDim> q{shared}, k{shared + Tile<kDim>::kFloats}, v{shared + 2 * Tile<kDim>::kFloats};
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  float* weights = shared + 3 * Tile<kDim>::kFloats + warp * kEach * kStreamed;
  const int64_t batch = unit / args.heads, head = unit % args.heads;
  const int64_t kvHead = (head + args.phase) / args.group;
  const int headDim = static_cast<int>(args.headDim), valueDim = static_cast<int>(args.valueDim);

  for (int64_t n = blockIdx.z; n < args.count; n += gridDim.z) {
    const Band r = args.bands[n];
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kOwned;
    if (first >= r.rows) continue;
    __syncthreads();  // wait until the previous band's reads of shared memory are done
    q.fill(args.q, batch, head, r.row + first, r.rows - first, headDim, fours);
    float sums[kEach][kDim / kLanes] = {}, most[kEach], total[kEach] = {};
#pragma unroll
    for (float& x : most) x = -INFINITY;
    const Range range(first + r.lower, min(first + kOwned, r.rows) + r.upper, r.columns);
    for (int64_t column = range.first; column < range.last; column += kStreamed) {
      __syncthreads();
      k.fill(args.k, batch, kvHead, r.column + column, range.last - column, headDim, fours);
      v.fill(args.v, batch, kvHead, r.column + column, range.last - column, valueDim, fours);
      __syncthreads();
      float scores[kEach];
      multiply(q, warp * kEach, k, headDim, scores);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int64_t row = first + warp * kEach + i, j = column + lane;
        const bool seen = j < range.last && j >= row + r.lower && j <= row + r.upper;
        const float score = seen ? scoreOf(scores[i], args) : -INFINITY;
        float largest = score;
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
        const float now = fmaxf(most[i], largest);
        const float correction = most[i] == -INFINITY ? 0 : expf(most[i] - now);
        float weight = seen ? expf(score - now) : 0;
        // A score of +-infinity or NaN sets the row to NaN, as in the definition.
        if (seen && isnan(score)) weight = score;
        most[i] = now;
        weights[i * kStreamed + lane] = weight;
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2) weight += __shfl_xor_sync(~0U, weight, step);
        total[i] = total[i] * correction + weight;
#pragma unroll
        for (float& sum : sums[i]) sum *= correction;
      }
      __syncwarp();
      accumulate(weights, v, sums);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t row = first + warp * kEach + i;
      if (row >= r.rows) break;
      const bool nothing = total[i] == 0;
      storeRow(args.out, batch, head, r.row + row, valueDim, sums[i], nothing ? 0.0f : 1 / total[i]);
      if (lane == 0) *at(args.lse, batch, head, r.row + row) = nothing ? -INFINITY : most[i] + logf(total[i]);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) bandForward(const __grid_constant__ BandProblem args, bool fours) {
  const int64_t units = args.heads * args.batch;
  for (int64_t unit = blockIdx.y; unit < units; unit += gridDim.y) forwardOf<kDim>(args, fours, unit);
}

}  // namespace

cudaError_t launchBandForward(const BandProblem& problem, cudaStream_t stream) {
  if (problem.count == 0 || problem.batch == 0) return cudaSuccess;
  const bool fours = byFours(problem.q, problem.headDim) && byFours(problem.k, problem.headDim) &&
                     byFours(problem.v, problem.valueDim);
  return byDim(std::max(problem.headDim, problem.valueDim), [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    return launchKernel(
        bandForward<kDim>,
        {gridOf(problem, problem.longestRows, problem.heads), kThreads, sharedBytes<kDim, 3, 1>(), stream}, problem,
        fours);
  });
}

cudaError_t prepareBandForward() {
  for (const int64_t dim : {64, 128, 256}) {
    const auto result = byDim(dim, [](auto padded) {
      constexpr int kDim = decltype(padded)::value;
      return cudaFuncSetAttribute(bandForward<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sharedBytes<kDim, 3, 1>());
    });
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}

}  // namespace seqpar::attn::softmax
