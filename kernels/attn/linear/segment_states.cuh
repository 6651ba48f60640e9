// Pass 1 of the forward for sm_80 and newer, bf16 and fp16: maps of segments. Each token's key is decayed to the
// segment's end, so the state is a sum that is never rescaled. Iterates from the last token to the first: it can stop
// once all earlier tokens are forgotten, and it leaves the first inputs of pass 3 in the L2 cache.
//
// Work      a CTA takes items (batch, segment, head, kValues columns of v) in steps of the grid; KernelShape has the
//           sizes
// Roles     every warp decays the keys of a group of channels, then multiplies 16 columns of v
// Tiles     stages of 32 tokens x dk; S^T 16 x dk fp32 in the registers of each warp (state.cuh)
// Smem      SegmentStatesShared: kStages stages of keys, values and gates
// Barriers  __syncthreads_and(): a stage is loaded, the stage before it is free, and whether all earlier tokens are
//           forgotten. Channel decays: __syncthreads(): the keys are decayed.
// Overlap   cp.async loads kStages - 1 stages ahead. Starts after the previous kernel.
#pragma once

#include "kernels/attn/linear/stage.cuh"
#include "kernels/attn/linear/state.cuh"

namespace seqpar::attn {

template <class Shape, bool PerChannel>
struct SegmentStatesShared {
  using Loaded = Stage<Shape, PerChannel, false>;
  static constexpr int kStages = PerChannel ? 3 : 5;
  static constexpr int kBytes = kStages * Loaded::kBytes;
  static_assert(kBytes <= ptx::kSharedBytesSm90);  // with dk of 256, channel decays need more than kSharedBytesSm80
};

/// Decays the keys of a stage and a group of channels to the segment's end, in place. `later` is the log2-decay from
/// the end of the stage to that of the segment, for this lane's channels; on return it includes the stage. Sums restart
/// in each stage, which keeps their rounding errors small in long segments.
template <class T, class Shape>
SEQPAR_DEVICE void decayKeys(char* keys, const char* gates, int group, bool full, int lane, float2& later) {
  using KeyTile = Tile<Shape::kDk>;
  constexpr int kTokens = Shape::kLaneTokens;
  float2 decays[kTokens];
  GateTile<Shape>::read(decays, gates, group, lane, full);
  float2 own = make_float2(0, 0);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) own = make_float2(own.x + decays[t].x, own.y + decays[t].y);
  float2 sum = sumOfOthers<Shape, true>(own, lane);
  char* const at =
      keys + KeyTile::offset(lane / Shape::kPairs * kTokens, group * Shape::kGroup + 2 * (lane % Shape::kPairs));
#pragma unroll
  for (int t = kTokens - 1; t >= 0; --t) {
    uint32_t* const two = reinterpret_cast<uint32_t*>(at + KeyTile::offset(t, 0));
    const float2 numbers = Numbers<T>::unpack(*two);
    *two = Numbers<T>::pack(numbers.x * ptx::ex2Approx(later.x + sum.x), numbers.y * ptx::ex2Approx(later.y + sum.y));
    sum = make_float2(sum.x + decays[t].x, sum.y + decays[t].y);
  }
  // The first lanes have the earliest tokens, and so the sum of the whole stage.
  later.x += __shfl_sync(0xffffffffU, sum.x, lane % Shape::kPairs);
  later.y += __shfl_sync(0xffffffffU, sum.y, lane % Shape::kPairs);
}

template <class T, int Dk, bool PerChannel>
SEQPAR_DEVICE void segmentState(const SegmentStates& pass, const Item& item, char* shared) {
  using Shape = KernelShape<Dk>;
  using Layout = SegmentStatesShared<Shape, PerChannel>;
  using Loaded = typename Layout::Loaded;
  using KeyTile = typename Loaded::KeyTile;
  constexpr bool kRaises = Numbers<T>::kRaises && !PerChannel;
  const LinearProblem& problem = pass.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t base = ptx::sharedAddress(shared);

  const int64_t tokens = item.end - item.begin;
  const int stages = static_cast<int>((tokens + kStageTokens - 1) / kStageTokens);
  const typename Loaded::Source source(problem, item);
  const float constant = PerChannel ? 0 : constantGate(problem, item.head);

  State<Shape> state;
  state.clear();
  float2 later = {};                        // of this lane's channels; or of all channels, in x
  const auto loadStage = [&](int number) {  // counted from the segment's end
    if (number < stages) {
      const int64_t token = int64_t{stages - 1 - number} * kStageTokens;
      Loaded::load(base + number % Layout::kStages * Loaded::kBytes, source, token, tokens - token);
    }
    ptx::cpAsyncCommitGroup();
  };
  for (int number = 0; number < Layout::kStages - 1; ++number) loadStage(number);
  for (int number = 0; number < stages; ++number) {
    ptx::cpAsyncWaitGroup<Layout::kStages - 2>();
    bool forgotten = later.x < kForgottenLog2;
    if (PerChannel) {
      forgotten = forgotten && later.y < kForgottenLog2;
      // Channels beyond dk have gates of 0 and keys of 0.
      if (warp * Shape::kGroup + 2 * (lane % Shape::kPairs) >= problem.dk) forgotten = true;
    }
    if (__syncthreads_and(forgotten)) break;
    loadStage(number + Layout::kStages - 1);
    char* const stage = shared + number % Layout::kStages * Loaded::kBytes;
    const uint32_t stageAt = base + number % Layout::kStages * Loaded::kBytes;
    uint32_t values[2][4];
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      ptx::ldmatrixX4Trans(values[block],
                           Loaded::ValueTile::fragmentAcross(stageAt + Loaded::kValuesAt, block * kBlockTokens, lane) +
                               2 * Shape::kWarpValues * warp);
    }
    [[maybe_unused]] float back = 1;  // factor of the stage's term
    if constexpr (PerChannel) {
      decayKeys<T, Shape>(stage + Loaded::kKeys, stage + Loaded::kGates, warp, source.fullGates(), lane, later);
      __syncthreads();
    } else {
      const int64_t there = tokens - int64_t{stages - 1 - number} * kStageTokens;
      const float sum = stageSum(source.tokenGates() ? reinterpret_cast<const float*>(stage + Loaded::kGates) : nullptr,
                                 constant, there < kStageTokens ? static_cast<int>(there) : kStageTokens, lane);
      const float total = __shfl_sync(0xffffffffU, sum, 31);
      float factor;  // of this lane's token
      if constexpr (kRaises) {
        const float raise = raiseOf(values);
        factor = ptx::ex2Approx(total - sum) * raise;
        back = ptx::ex2Approx(later.x) * inversePower(raise);
      } else {
        factor = ptx::ex2Approx(later.x + (total - sum));
      }
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        float factors[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          factors[i] = __shfl_sync(0xffffffffU, factor, ptx::AccumulatorLayout{lane}.term(block * kBlockTokens, i));
        }
        scaleValues<T>(values[block], factors);
      }
      later.x += total;
    }
    const uint32_t keysAt = KeyTile::fragment(stageAt + Loaded::kKeys, 0, lane);
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      const auto load = [&](uint32_t(&keys)[4], int block) {
        ptx::ldmatrixX4Trans(keys, keysAt + KeyTile::offset(block * kBlockTokens, 16 * step));
      };
      if constexpr (kRaises) {
        state.template addTimes<T>(back, step, values, load);
      } else {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          uint32_t keys[4];
          load(keys, block);
          state.template add<T>(step, values[block], keys);
        }
      }
    }
  }
  ptx::cpAsyncWaitGroup<0>();

  const int column = item.tile * Shape::kValues + warp * Shape::kWarpValues;
  const int64_t map = mapIndex(item, problem, pass.segments);
  state.store(pass.maps.states + map * problem.dk * problem.dv + column, problem.dk, problem.dv, problem.dv - column);
  if (item.tile != 0) return;
  const int width = transitionWidth(problem);
  const auto put = [&](int channel, float log2) {
    const bool nothingLeft = startsSequence(item) || log2 < kForgottenLog2;
    if (channel < width) pass.maps.transitions[map * width + channel] = nothingLeft ? -INFINITY : log2 / kLog2e;
  };
  if (PerChannel && lane < Shape::kPairs) {
    put(warp * Shape::kGroup + 2 * lane, later.x);
    put(warp * Shape::kGroup + 2 * lane + 1, later.y);
  }
  if (!PerChannel && threadIdx.x == 0) put(0, later.x);
}

template <class T, int Dk, bool PerChannel>
__global__ void __launch_bounds__(KernelShape<Dk>::kThreads, KernelShape<Dk>::kCtas)
    segmentStatesKernel(const __grid_constant__ SegmentStates pass, int segments, int64_t items) {
  extern __shared__ __align__(1024) char shared[];
  const int tiles = (pass.problem.dv + KernelShape<Dk>::kValues - 1) / KernelShape<Dk>::kValues;
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    segmentState<T, Dk, PerChannel>(pass, itemAt(index, pass.problem, pass.heads, pass.segments, segments, tiles),
                                    shared);
    __syncthreads();
  }
}

}  // namespace seqpar::attn
