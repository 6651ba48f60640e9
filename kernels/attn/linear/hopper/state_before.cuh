// What a multiplying warpgroup of pass 3 starts from: the state before its item's segment. This rank's tokens before it
// have left the maps of their segments, and `initial` decays over them. For one decay of all channels; see Multiplier
// for others.
#pragma once

#include "kernels/attn/linear/hopper/outputs_shared.cuh"
#include "kernels/attn/linear/prior_kernel.cuh"

namespace seqpar::attn::hopper {

class StateBefore {
 public:
  using Layout = OutputsShared;

  __device__ __forceinline__ StateBefore(const Outputs& pass, char* shared, int which)
      : pass_(pass), problem_(pass.problem), shared_(shared), which_(which), thread_(threadIdx.x % kGroupThreads) {}

  /// Segment by segment backwards, or all of them as one; then what came before the first. The nearest state comes as
  /// it is. Packed, the second is on its way with it; more come where decays leave something of them.
  __device__ __forceinline__ void make(const Item& item, float (&state)[64]) const {
    if (item.segment == 0 && pass_.initial == nullptr) {  // needs nothing of pass 1: its CTAs may run beside it
#pragma unroll
      for (int i = 0; i < 64; ++i) state[i] = 0;
      return;
    }
    if (!pass_.mapsAreThere && !pass_.leads) waitForPriorKernel();
    int next = before(item.segment);
    float sum = logOf(item, next, item.segment);
    fetch(item, item.segment, state);
    float numbers[64];
#pragma unroll 1
    for (bool second = pass_.packed; next > 0 || (next == 0 && pass_.initial != nullptr); second = false) {
      const float more = logOf(item, before(next), next);
      if (!second && !setFactors(sum)) return;
      fetch(item, next, numbers);
      if (second && !setFactors(sum)) return;
      addDecayed(state, numbers);
      sum += more;
      next = before(next);
    }
  }

 private:
  __device__ __forceinline__ int before(int next) const {
    return pass_.apart ? next - 1 : min(next, 1) - 1;
  }
  /// The sum of log-decays from segment `first` to before `end`.
  __device__ __forceinline__ float logOf(const Item& item, int first, int end) const {
    const float* const logs = pass_.maps.logDecays + headIndex(item, problem_) * pass_.segments.count;
    float sum = 0;
    for (int segment = max(first, 0); segment < end; ++segment) sum += logs[segment];
    return sum;
  }
  /// The map of the segment before `next`, or of all that are; before the first, the state that comes in.
  __device__ __forceinline__ void fetch(const Item& item, int next, float (&numbers)[64]) const {
    const int64_t size = int64_t{problem_.dk} * problem_.dv, head = headIndex(item, problem_);
    const float* const from =
        next > 0 ? pass_.maps.states + (head * pass_.segments.count + (pass_.apart ? next - 1 : next)) * size
                 : pass_.initial + head * size;
    if (next > 0 && pass_.packed) return getPacked(numbers, from, item.tile, which_);
    const int column = item.tile * kMostColumns, values = problem_.dv - column;
    const int thread = hide(thread_), row = kSwizzleColumns * which_ + 16 * (thread / 32) + thread % 32 / 4;
    const float* at = from + column + 2 * (thread % 4) * problem_.dv + row;
    const bool there[2] = {row < values, row + 8 < values};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = 8 * j < problem_.dk && there[e / 2];
        numbers[4 * j + e] = exists ? at[e % 2 * problem_.dv + e / 2 * 8] : 0;  // as eachOfState() counts them
      }
      at += 8 * problem_.dv;
    }
  }
  /// Each thread's channel's factor, in the room of outputs on their way; false: all of them are 0.
  __device__ __forceinline__ bool setFactors(float logDecay) const {
    // Outputs of an item before have left.
    if (thread_ == 0) warp::awaitBulkRead<0>();
    syncNamed(kMultiplyBarrier + which_, kGroupThreads);
    const float mine = thread_ < problem_.dk ? exp2Fast(logDecay * kLog2e) : 0;
    factors()[thread_] = mine;
    return anyNamed(kMultiplyBarrier + which_, kGroupThreads, mine != 0);
  }
  __device__ __forceinline__ float* factors() const {
    return reinterpret_cast<float*>(shared_ + Layout::kOut + which_ * kTileBytes);
  }
  /// Adds a state times factors().
  __device__ __forceinline__ void addDecayed(float (&state)[64], const float (&numbers)[64]) const {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(factors() + 8 * j + 2 * (thread_ % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 == 0 ? by.x : by.y;
        state[4 * j + e] += factor == 0 ? 0 : factor * numbers[4 * j + e];
      }
    }
    syncNamed(kMultiplyBarrier + which_, kGroupThreads);
  }

  const Outputs& pass_;
  const LinearProblem& problem_;
  char* shared_;
  int which_, thread_;
};

}  // namespace seqpar::attn::hopper
