// Sums of terms that are in the memory of one GPU.
//
// Work      a thread has one access of a sum, in steps of the grid; then one row of lse
// Roles     all threads alike
// Tiles     16 bytes, or one element if a region's runs are not aligned to them
// Smem      none
// Barriers  none
// Overlap   none
#include <algorithm>

#include "kernels/exchange/launch.h"
#include "kernels/exchange/regions.h"
#include "kernels/exchange/sums.cuh"
#include "kernels/launch.h"

namespace seqpar::device {
namespace {

constexpr int kCombineThreads = 256;

template <typename Number, typename Access, bool kLse>
__device__ void combineSum(const CombineArgs& args, const SumArg& sum) {
  const std::uint64_t vecs = sum.region.bytes / sizeof(Access);
  const std::uint64_t threads = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t vec = blockIdx.x * blockDim.x + threadIdx.x; vec < vecs; vec += threads) {
    const std::uint64_t position = vec * sizeof(Access);
    const bool has[] = {true};
    const auto out = [&](int) { return addressOf(sum.region, position); };
    const auto termAt = [&](int term, int) { return args.terms[sum.first + term] + position; };
    if constexpr (kLse) {
      // A term may have weight 0.
      const RowWeights weights(args.lse, lseRow(args.lse, position));
      addTerms<Number, Access, 1>(has, false, true, sum.count, out, termAt,
                                  [&](int term, int) { return weights.of(term); });
    } else {
      addTerms<Number, Access, 1>(has, sum.existing != 0, false, sum.count, out, termAt, [](int, int) { return 1.0F; });
    }
  }
}

template <typename Number, bool kLse>
__global__ void __launch_bounds__(kCombineThreads) combineKernel(const __grid_constant__ CombineArgs args) {
  for (int i = 0; i < args.count; ++i) {
    const SumArg& sum = args.sums[i];
    if (sum.region.width == 16) {
      combineSum<Number, uint4, kLse>(args, sum);
    } else {
      combineSum<Number, Number, kLse>(args, sum);
    }
  }
  if constexpr (kLse) {
    const std::uint64_t threads = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
    for (std::uint64_t row = blockIdx.x * blockDim.x + threadIdx.x; row < args.lse.rows; row += threads) {
      args.lse.merged[row] = RowWeights(args.lse, row).merged();
    }
  }
}

}  // namespace

cudaError_t launchCombine(const CombineArgs& args, seqparDataType_t type, std::uint64_t work, std::uint64_t ctas,
                          cudaStream_t stream) {
  if (work == 0) return cudaSuccess;
  const auto used = static_cast<unsigned>(std::min((work + kCombineThreads - 1) / kCombineThreads, ctas));
  return withNumber(type, [&](auto number) {
    using Number = decltype(number);
    return launchKernel(args.lse.rows > 0 ? combineKernel<Number, true> : combineKernel<Number, false>,
                        {used, kCombineThreads, 0, stream}, args);
  });
}

}  // namespace seqpar::device
