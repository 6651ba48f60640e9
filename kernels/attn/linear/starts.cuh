// Sequence starts of packed batches, as a CTA meets them.
#pragma once

#include <cstdint>

#include "kernels/attn/linear/args.h"
#include "kernels/attn/linear/shape.h"

namespace seqpar::attn {

/// The last start in [begin, end), or -1. All threads of a CTA; `shared` has Warps numbers.
template <int Warps>
__device__ __forceinline__ int64_t lastStart(const LinearProblem& problem, int64_t begin, int64_t end,
                                             int64_t* shared) {
  if (problem.starts == nullptr) return -1;
  int64_t last = -1;
  for (int64_t i = threadIdx.x; i < problem.startCount; i += 32 * Warps) {
    const int64_t start = problem.starts[i];
    if (start >= begin && start < end && start > last) last = start;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const int64_t other = __shfl_xor_sync(0xffffffffU, last, distance);
    last = other > last ? other : last;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = last;
  __syncthreads();
  for (int warp = 0; warp < Warps; ++warp) last = shared[warp] > last ? shared[warp] : last;
  return last;
}

/// Goes through the starts from a token on.
template <int Warps>
class StartCursor {
 public:
  /// All threads of a CTA, with the same token; `shared` has Warps numbers.
  __device__ __forceinline__ StartCursor(const LinearProblem& problem, int64_t token, int64_t* shared)
      : starts_(problem.starts), count_(problem.starts == nullptr ? 0 : problem.startCount) {
    if (count_ == 0) return;
    int64_t before = 0;
    for (int64_t i = threadIdx.x; i < count_; i += 32 * Warps) before += starts_[i] < token;
    for (int distance = 16; distance > 0; distance /= 2) before += __shfl_xor_sync(0xffffffffU, before, distance);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = before;
    __syncthreads();
    for (int warp = 0; warp < Warps; ++warp) at_ += shared[warp];
    next_ = at_ < count_ ? starts_[at_] : INT64_MAX;
  }

  /// Bit t: a sequence starts at token + t, before `end`, which is at most kStageTokens further. Stages come in order.
  __device__ __forceinline__ uint32_t stage(int64_t token, int64_t end) {
    uint32_t bits = 0;
    while (next_ < end) {
      if (next_ >= token) bits |= 1U << (next_ - token);
      next_ = ++at_ < count_ ? starts_[at_] : INT64_MAX;
    }
    return bits;
  }

 private:
  const int64_t* starts_;
  int64_t count_, at_ = 0, next_ = INT64_MAX;
};

}  // namespace seqpar::attn
