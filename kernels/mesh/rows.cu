// Combines partial results of one block from two sides, on a GPU.
//
// Work      combineRows: a thread has kWidth elements, in steps of the grid; mergeLseRows: a thread has one row
// Roles     all threads alike
// Tiles     1 or 4 elements
// Smem      none
// Barriers  none
// Overlap   none
#include "kernels/mesh/rows.h"

#include <algorithm>

#include "kernels/launch.h"
#include "kernels/vec.cuh"

namespace seqpar {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kMostCtas = 1024;

/// exp(a - merged) and exp(b - merged), as in src/mesh/rows.h for hosts.
__device__ float2 weightsOf(float a, float b) {
  const float most = isnan(a) || isnan(b) ? NAN : fmaxf(a, b);
  if (most == -INFINITY) return {0, 0};
  const float x = a == -INFINITY ? 0 : expf(a - most);
  const float y = b == -INFINITY ? 0 : expf(b - most);
  return {x / (x + y), y / (x + y)};
}

__device__ float mergedLse(float a, float b) {
  const float most = isnan(a) || isnan(b) ? NAN : fmaxf(a, b);
  if (most == -INFINITY) return most;
  return most + logf((a == -INFINITY ? 0 : expf(a - most)) + (b == -INFINITY ? 0 : expf(b - most)));
}

/// kWidth divides dim if there are rows.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) combineRows(const __grid_constant__ CombineRows args) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads * kWidth;
  for (std::size_t i = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < args.count;
       i += step) {
    auto sum = loadVec<kWidth>(args.data, args.dataType, i);
    if (args.carry != nullptr) {
      const auto remote = loadVec<kWidth>(args.carry, args.wireType, i);
      float2 weight{1, 1};
      if (args.lse != nullptr) {
        const std::size_t row = i / args.dim;
        const std::size_t at = row % args.heads * args.tokens + row / args.heads;
        weight = weightsOf(args.lse[at], args.carryLse[at]);
      }
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        // A weight of 0 excludes its side, even NaN or infinity.
        const float mine = weight.x == 0 ? 0 : weight.x * sum.value[k];
        sum.value[k] = weight.y == 0 ? mine : mine + weight.y * remote.value[k];
      }
    }
    storeVec<kWidth>(args.out, args.result, i, sum);
  }
}

__global__ void __launch_bounds__(kThreads) mergeLseRows(float* lse, const float* carryLse, std::size_t rows) {
  const std::size_t row = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < rows) lse[row] = mergedLse(lse[row], carryLse[row]);
}

}  // namespace

cudaError_t launchCombineRows(const CombineRows& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const auto aligned = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; };
  const bool wide =
      args.dim % 4 == 0 && args.count % 4 == 0 && aligned(args.out) && aligned(args.data) && aligned(args.carry);
  const std::size_t each = static_cast<std::size_t>(kThreads) * (wide ? 4 : 1);
  const auto ctas = static_cast<unsigned>(std::min(kMostCtas, (args.count + each - 1) / each));
  return launchKernel(wide ? combineRows<4> : combineRows<1>, {ctas, kThreads, 0, stream}, args);
}

cudaError_t launchMergeLse(float* lse, const float* carryLse, std::size_t rows, cudaStream_t stream) {
  const auto ctas = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  if (ctas == 0) return cudaSuccess;
  return launchKernel(mergeLseRows, {ctas, kThreads, 0, stream}, lse, carryLse, rows);
}

}  // namespace seqpar
