// Pass 1 of the forward: maps of segments. Each token's key is decayed to the segment's end, so the state is a sum that
// is never rescaled. Walks from the last token to the first: it can stop when all that is left is forgotten, and leaves
// in the L2 cache what pass 3 reads first.
#pragma once

#include "kernels/attn/linear/stage.cuh"
#include "kernels/attn/linear/starts.cuh"
#include "kernels/attn/linear/state.cuh"

namespace seqpar::attn {

template <class Shape, bool PerChannel>
struct SegmentStatesShared {
  using Loaded = Stage<Shape, PerChannel, false>;
  static constexpr int kStages = Shape::kDk == 256 ? 3 : (PerChannel ? 3 : 4);
  static constexpr int kNumbers = kStages * Loaded::kBytes;
  static constexpr int kBytes = kNumbers + kWarps * 8;
};

/// Decays the keys of a block and a group of channels to the segment's end, in place. `later` is the log2-decay from
/// the end of the stage to that of the segment; comes back with the stage in it. Sums begin anew in each block, which
/// keeps their rounding small in long segments.
template <class T, class Shape>
__device__ __forceinline__ void decayKeys(char* keys, const char* gates, int block, int group, bool full, int lane,
                                          float2& later) {
  using Gates = GateTile<Shape>;
  float2 decays[kBlockTokens];
  Gates::read(decays, gates, (1 - block) * kBlockTokens, group, lane, full);
  float2 other = make_float2(0, 0);
#pragma unroll
  for (int t = 0; t < kBlockTokens; ++t) {
    other.x += decays[t].x;
    other.y += decays[t].y;
  }
  Gates::read(decays, gates, block * kBlockTokens, group, lane, full);
  const float2 after = block == 0 ? make_float2(later.x + other.x, later.y + other.y) : later;
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int t = kBlockTokens - 1; t >= 0; --t) {
    const uint32_t at = Tile<Shape::kDk>::elementOffset(block * kBlockTokens + t, group * Shape::kGroup + 2 * lane);
    uint32_t* const two = reinterpret_cast<uint32_t*>(keys + at);
    const float2 numbers = Numbers<T>::unpack(*two);
    *two = Numbers<T>::pack(numbers.x * exp2Fast(after.x + sum.x), numbers.y * exp2Fast(after.y + sum.y));
    sum.x += decays[t].x;
    sum.y += decays[t].y;
  }
  later.x += sum.x + other.x;
  later.y += sum.y + other.y;
}

template <class T, int Dk, bool PerChannel>
__device__ __forceinline__ void segmentState(const SegmentStates& pass, const Item& whole, char* shared) {
  using Shape = KernelShape<Dk>;
  using Layout = SegmentStatesShared<Shape, PerChannel>;
  using Loaded = typename Layout::Loaded;
  const LinearProblem& problem = pass.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t base = sharedAddress(shared);

  const int64_t start =
      lastStart(problem, whole.begin, whole.end, reinterpret_cast<int64_t*>(shared + Layout::kNumbers));
  Item item = whole;
  if (start >= 0) item.begin = start;
  const int64_t tokens = item.end - item.begin;
  const int stages = static_cast<int>((tokens + kStageTokens - 1) / kStageTokens);
  const typename Loaded::Source source(problem, item);
  const float constant = PerChannel ? 0 : constantGate(problem, item.head);

  State<Shape> state;
  state.clear();
  constexpr int kGroupsOfWarp = Shape::kGroupsOfWarp;
  float2 later[kGroupsOfWarp] = {};         // of this lane's channels
  float laterAll = 0;                       // of all channels
  const auto loadStage = [&](int number) {  // counted from the segment's end
    if (number < stages) {
      const int64_t token = int64_t{stages - 1 - number} * kStageTokens;
      Loaded::load(base + number % Layout::kStages * Loaded::kBytes, source, token, tokens - token);
    }
    commitCopies();
  };
  for (int number = 0; number < Layout::kStages - 1; ++number) loadStage(number);
  for (int number = 0; number < stages; ++number) {
    waitCopies<Layout::kStages - 2>();
    bool forgotten = true;
    if (PerChannel) {
#pragma unroll
      for (int i = 0; i < kGroupsOfWarp; ++i) {
        forgotten = forgotten && later[i].x < kForgottenLog2 && later[i].y < kForgottenLog2;
      }
      if (2 * lane >= Shape::kGroup) forgotten = true;
      // Channels beyond dk have gates of 0 and keys of 0.
      if (warp % 2 * Shape::kHalf + 2 * lane >= problem.dk) forgotten = true;
    } else {
      forgotten = laterAll < kForgottenLog2;
    }
    if (__syncthreads_and(forgotten)) break;
    loadStage(number + Layout::kStages - 1);
    char* const stage = shared + number % Layout::kStages * Loaded::kBytes;
    const uint32_t stageAt = base + number % Layout::kStages * Loaded::kBytes;
    float sums = 0;  // without channels: of this lane's token, in its block
    if constexpr (PerChannel) {
      if (2 * lane < Shape::kGroup) {
#pragma unroll
        for (int i = 0; i < kGroupsOfWarp; ++i) {
          decayKeys<T, Shape>(stage + Loaded::kKeys, stage + Loaded::kGates, warp / 2, warp % 2 * kGroupsOfWarp + i,
                              source.fullGates, lane, later[i]);
        }
      }
      __syncthreads();
    } else {
      const int64_t there = tokens - int64_t{stages - 1 - number} * kStageTokens;
      sums = blockSums(source.tokenGates ? reinterpret_cast<const float*>(stage + Loaded::kGates) : nullptr, constant,
                       there < kStageTokens ? static_cast<int>(there) : kStageTokens, 0);
    }
#pragma unroll
    for (int block = 1; block >= 0; --block) {
      uint32_t values[Shape::kValueTiles][4];
      loadValues<Shape>(values, stageAt + Loaded::kValuesAt, block * kBlockTokens, warp * Shape::kWarpValues, lane);
      if constexpr (!PerChannel) {
        const float last = __shfl_sync(0xffffffffU, sums, block * kBlockTokens + kBlockTokens - 1);
        float factors[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = 2 * (lane % 4) + i % 2 + 8 * (i / 2);
          const float sum = __shfl_sync(0xffffffffU, sums, block * kBlockTokens + token);
          factors[i] = exp2Fast(laterAll + (last - sum));
        }
        scaleValues<T, Shape>(values, factors);
        laterAll += last;
      }
#pragma unroll
      for (int step = 0; step < Dk / 16; ++step) {
        uint32_t keys[4];
        loadTransposed(keys,
                       stageAt + Loaded::kKeys + Loaded::KeyTile::fragment(block * kBlockTokens, 16 * step, lane));
        state.template add<T>(step, values, keys);
      }
    }
  }
  waitCopies<0>();

  const int column = item.tile * Shape::kValues + warp * Shape::kWarpValues;
  const int64_t map = mapIndex(item, problem, pass.segments);
  state.store(pass.maps.states + map * problem.dk * problem.dv + column, problem.dk, problem.dv, problem.dv - column);
  const int width = decayWidth(problem);
  const auto put = [&](int channel, float log2) {
    const bool nothingLeft = start >= 0 || log2 < kForgottenLog2;
    pass.maps.logDecays[map * width + channel] = nothingLeft ? -INFINITY : log2 / kLog2e;
  };
  if (item.tile == 0 && PerChannel && warp < 2 && 2 * lane < Shape::kGroup) {
#pragma unroll
    for (int i = 0; i < kGroupsOfWarp; ++i) {
      const int channel = (warp * kGroupsOfWarp + i) * Shape::kGroup + 2 * lane;
      if (channel < problem.dk) put(channel, later[i].x);
      if (channel < problem.dk) put(channel + 1, later[i].y);
    }
  }
  if (item.tile == 0 && !PerChannel && threadIdx.x == 0) put(0, laterAll);
}

template <class T, int Dk, bool PerChannel>
__global__ void __launch_bounds__(kThreads, Dk == 256 ? 1 : 2)
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
