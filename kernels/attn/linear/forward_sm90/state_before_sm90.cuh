// The initial state of a consumer warpgroup of pass 3: the state before its item's segment, from the maps of the rank's
// earlier segments, and from `initial` decayed over them. For one decay of all channels; see Consumer for others.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/forward_sm90/outputs_shared_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/sweeps_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

class StateBefore {
 public:
  /// `outTile`: the consumer's output buffer; `half`: its 64 columns of the tile.
  SEQPAR_DEVICE StateBefore(const Outputs& pass, char* outTile, int which, int half)
      : pass_(pass),
        problem_(pass.problem),
        outTile_(outTile),
        which_(which),
        half_(half),
        thread_(threadIdx.x % kGroupThreads) {}

  /// From the last segment to the first, or all segments as one; then `initial`. The nearest state is added without a
  /// factor. With MapFormat::Registers the second one is loaded before its factors are known; further ones are loaded
  /// while decays leave a nonzero factor.
  SEQPAR_DEVICE void make(const Sweep& item, Shape::State& state) const {
    if (item.before == 0 && !takesInitial(item)) {  // independent of pass 1: these CTAs may overlap with it
#pragma unroll
      for (int i = 0; i < Shape::kStateElements; ++i) state[i] = 0;
      return;
    }
    if (pass_.mapsVisible == Visible::AfterWait && pass_.tokens == Tokens::OfSegments) ptx::griddepcontrolWait();
    int next = before(item.before);
    float sum = logOf(item, next, item.before);
    fetch(item, item.before, state);
    Shape::State numbers;
#pragma unroll 1
    for (MapFormat format = pass_.format; next > 0 || (next == 0 && takesInitial(item)); format = MapFormat::RowMajor) {
      const float more = logOf(item, before(next), next);
      if (format == MapFormat::RowMajor && !setFactors(item, sum)) return;
      fetch(item, next, numbers);
      if (format != MapFormat::RowMajor && !setFactors(item, sum)) return;
      addDecayed(state, numbers);
      sum += more;
      next = before(next);
    }
  }

 private:
  SEQPAR_DEVICE int before(int next) const {
    return pass_.content != Maps::Prefix ? next - 1 : min(next, 1) - 1;
  }
  SEQPAR_DEVICE bool takesInitial(const Sweep& item) const {
    return pass_.initial != nullptr && item.continues;
  }
  /// Index of the sequence's first map.
  SEQPAR_DEVICE int64_t firstMap(const Sweep& item) const {
    return mapIndex(item, problem_, pass_.segments) - item.before;
  }
  /// The sum of log-decays from the sequence's segment `first` to before `end`.
  SEQPAR_DEVICE float logOf(const Sweep& item, int first, int end) const {
    const float* const logs = pass_.maps.transitions + firstMap(item);
    float sum = 0;
    for (int segment = max(first, 0); segment < end; ++segment) sum += logs[segment];
    return sum;
  }
  /// Loads the map of the sequence's segment before `next`, or of all its earlier segments; before the first, the
  /// incoming state.
  SEQPAR_DEVICE void fetch(const Sweep& item, int next, Shape::State& numbers) const {
    const int64_t size = int64_t{problem_.dk} * problem_.dv;
    const float* const from =
        next > 0 ? pass_.maps.states + (firstMap(item) + (pass_.content != Maps::Prefix ? next - 1 : next)) * size
                 : pass_.initial + headIndex(item, problem_) * size;
    if (next > 0 && pass_.format != MapFormat::RowMajor) return getPacked(numbers, from, item.tile, half_);
    const int column = item.tile * Shape::kColumns, values = problem_.dv - column;
    const int thread = ptx::opaque(thread_), row = kSwizzleColumns * half_ + 16 * (thread / 32) + thread % 32 / 4;
    const int firstChannel = item.firstChannel();
    const float* at = from + int64_t{firstChannel} * problem_.dv + column + 2 * (thread % 4) * problem_.dv + row;
    const bool there[2] = {row < values, row + 8 < values};
#pragma unroll
    for (int j = 0; j < Shape::kOctets; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = firstChannel + 8 * j < problem_.dk && there[e / 2];
        numbers[4 * j + e] = exists ? at[e % 2 * problem_.dv + e / 2 * 8] : 0;  // indexed as in eachOfState()
      }
      at += 8 * problem_.dv;
    }
  }
  /// Stores each thread's channel's factor in the output buffer; returns false if all are 0.
  SEQPAR_DEVICE bool setFactors(const Sweep& item, float logDecay) const {
    // Waits until the outputs of the previous item were copied.
    if (thread_ == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
    ptx::barrierSync(kConsumerBarrier + which_, kGroupThreads);
    const float mine = item.firstChannel() + thread_ < problem_.dk ? ptx::ex2Approx(logDecay * kLog2e) : 0;
    factors()[thread_] = mine;
    return ptx::barrierRedOr(kConsumerBarrier + which_, kGroupThreads, mine != 0);
  }
  SEQPAR_DEVICE float* factors() const {
    return reinterpret_cast<float*>(outTile_);
  }
  /// Adds a state times factors().
  SEQPAR_DEVICE void addDecayed(Shape::State& state, const Shape::State& numbers) const {
#pragma unroll
    for (int j = 0; j < Shape::kOctets; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(factors() + 8 * j + 2 * (thread_ % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 == 0 ? by.x : by.y;
        state[4 * j + e] += factor == 0 ? 0 : factor * numbers[4 * j + e];
      }
    }
    ptx::barrierSync(kConsumerBarrier + which_, kGroupThreads);
  }

  const Outputs& pass_;
  const LinearProblem& problem_;
  char* outTile_;
  int which_, half_, thread_;
};

}  // namespace seqpar::attn::forward_sm90
