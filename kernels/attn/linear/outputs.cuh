// Pass 3 of the forward for sm_80 and newer, bf16 and fp16: outputs of segments, each from the state before it. The
// recurrence runs in stages of 32 tokens: o = (q 2^L) S + scores v, then S = 2^Lend (S + (k 2^-L)^T v). Decays of
// longer ranges are never needed.
//
// Work      a CTA takes items (batch, segment, head, kValues columns of v) in steps of the grid; KernelShape has the
//           sizes
// Roles     every warp prepares a group of channels of q and k (prepare.cuh), computes scores (scores.cuh), then
//           outputs of 16 columns of v
// Tiles     stages of 32 tokens x dk; S^T 16 x dk fp32 in the registers of each warp (state.cuh)
// Smem      OutputsShared: kStages stages (stage.cuh), scores, decays of channels, masks
// Barriers  __syncthreads(): a stage is loaded, and the stage before it is free; it is prepared; its scores are stored
// Overlap   cp.async loads kStages - 1 stages ahead. griddepcontrol.wait at the start: this kernel reads maps.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/block_outputs.cuh"
#include "kernels/attn/linear/scores.cuh"
#include "kernels/attn/linear/stage.cuh"
#include "kernels/attn/linear/state.cuh"

namespace seqpar::attn {

template <class Shape, bool PerChannel>
struct OutputsShared {
  using Loaded = Stage<Shape, PerChannel, true>;
  static constexpr int kStages = PerChannel ? 2 : (Shape::kDk == 256 ? 3 : 4);
  static constexpr int kScores = kStages * Loaded::kBytes;
  static constexpr int kDecays = kScores + kScoreBytes;        ///< [2][dk]
  static constexpr int kMasks = kDecays + 2 * Shape::kDk * 4;  ///< per warp: whether its group is exact
  static constexpr int kBytes = kMasks + 64;
  static_assert(kBytes <= ptx::kSharedBytesSm80 && Shape::kWarps * sizeof(uint32_t) <= 64);
};

/// One warp's view of a prepared stage: the addresses of its fragments, and the fragments of v transposed.
template <class Shape>
struct PreparedStage {
  uint32_t queries, keys;
  uint32_t values[2][4];
  const float* decays;
  uint32_t exactGroups;
  int lane;
  float stateScale;  ///< a power of 2

  SEQPAR_DEVICE void loadQueries(uint32_t (&to)[4], int block, int step) const {
    ptx::ldmatrixX4(to, queries + Tile<Shape::kDk>::offset(16 * block, 16 * step));
  }
  SEQPAR_DEVICE void loadKeys(uint32_t (&to)[4], int block, int step) const {
    ptx::ldmatrixX4Trans(to, keys + Tile<Shape::kDk>::offset(16 * block, 16 * step));
  }
};

/// outputs[block] = q S for two blocks, and advances S to the stage's end, with channel decays. No group is exact.
template <class T, class Shape>
SEQPAR_DEVICE void advanceSafe(BlockOutputs (&outputs)[2], State<Shape>& state, const PreparedStage<Shape>& stage) {
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    uint32_t rounded[4], queries[4], keys[4];
    state.template round<T>(rounded, step, [&](float x) { return x * stage.stateScale; });
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      stage.loadQueries(queries, block, step);
      outputs[block].template add<T>(queries, rounded);
    }
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      stage.loadKeys(keys, block, step);
      state.template add<T>(step, stage.values[block], keys);
    }
    state.template scale<false>(step, stage.decays, stage.lane);
  }
}

/// For stages with exact groups, or a state with non-finite elements: state that a decay of 0 discards within a block
/// is excluded. A query of 0 is not multiplied by such elements; other outputs become NaN. The state may grow between
/// the blocks, so it is multiplied by kStateScale.
template <class T, class Shape>
SEQPAR_DEVICE void advanceExact(BlockOutputs (&outputs)[2], State<Shape>& state, const PreparedStage<Shape>& stage) {
  const bool notFinite = state.anyNotFinite();
  BlockOutputs meetings[2];
  const auto multiply = [&](int block, int step) {
    uint32_t queries[4], rounded[4];
    stage.loadQueries(queries, block, step);
    if (!notFinite) {
      state.template round<T>(rounded, step, [](float x) { return x * Numbers<T>::kStateScale; });
      outputs[block].template add<T>(queries, rounded);
      return;
    }
    state.template round<T>(rounded, step, [](float x) { return isfinite(x) ? x * Numbers<T>::kStateScale : 0; });
    outputs[block].template add<T>(queries, rounded);
    state.template round<T>(rounded, step, [](float x) { return isfinite(x) ? 0.0F : 1.0F; });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = Numbers<T>::unpack(queries[i]);
      queries[i] = Numbers<T>::pack(two.x != 0 ? 1 : 0, two.y != 0 ? 1 : 0);
    }
    meetings[block].template add<T>(queries, rounded);
  };
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    const bool exact = (stage.exactGroups >> (16 * step / Shape::kGroup) & 1) != 0;
    multiply(0, step);
    if (!exact) multiply(1, step);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      if (exact && block == 1) multiply(1, step);
      if (exact) state.template scale<true>(step, stage.decays + block * Shape::kDk, stage.lane);
      uint32_t keys[4];
      stage.loadKeys(keys, block, step);
      state.template add<T>(step, stage.values[block], keys);
    }
    if (!exact) state.template scale<false>(step, stage.decays, stage.lane);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (meetings[i / 8].tile[i / 4 % 2][i % 4] != 0) outputs[i / 8].tile[i / 4 % 2][i % 4] = NAN;
  }
}

/// For one decay of all channels, which v already contains. `Forget`: it is 0; otherwise the state is multiplied by
/// `decay`.
template <class T, class Shape, bool Forget>
SEQPAR_DEVICE void advanceUniform(BlockOutputs (&outputs)[2], State<Shape>& state, const PreparedStage<Shape>& stage,
                                  float decay) {
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    uint32_t rounded[4], queries[4], keys[4];
    state.template round<T>(rounded, step, [&](float x) { return x * stage.stateScale; });
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      stage.loadQueries(queries, block, step);
      outputs[block].template add<T>(queries, rounded);
    }
    if (Forget) {
#pragma unroll
      for (int e = 0; e < 8; ++e) state.tile[2 * step + e / 4][e % 4] = 0;
    } else {
      state.scale(step, decay);
    }
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      stage.loadKeys(keys, block, step);
      state.template add<T>(step, stage.values[block], keys);
    }
  }
}

/// Computes the state before an item's segment from the rank's earlier tokens, and `initial` decayed over them.
/// `factors` has one element per channel.
template <class Shape>
SEQPAR_DEVICE void startState(State<Shape>& state, const Outputs& pass, const Item& item, float* factors, int column) {
  const LinearProblem& problem = pass.problem;
  const int width = transitionWidth(problem);
  const int64_t firstMap = mapIndex(item, problem, pass.segments) - item.before;  // of the sequence
  const bool takesInitial = pass.initial != nullptr && item.continues;
  if (takesInitial) {
    for (int channel = static_cast<int>(threadIdx.x); channel < Shape::kDk; channel += Shape::kThreads) {
      float sum = 0;
      if (channel < problem.dk) {
        for (int map = 0; map < item.before; ++map) {
          sum += pass.maps.transitions[(firstMap + map) * width + (width > 1 ? channel : 0)];
        }
      }
      factors[channel] = ptx::ex2Approx(sum * kLog2e);
    }
  }
  __syncthreads();
  const int64_t size = int64_t{problem.dk} * problem.dv;
  const float* const before = item.before > 0 ? pass.maps.states + (firstMap + item.before) * size + column : nullptr;
  const float* const initial = takesInitial ? pass.initial + headIndex(item, problem) * size + column : nullptr;
  // No branches in the loop, so that all loads are in flight at once.
  const int values = problem.dv - column;
  state.clear();
  if (before != nullptr) {
    state.each([&](float& number, int key, int value) {
      if (key < problem.dk && value < values) number = before[key * problem.dv + value];
    });
  }
  if (initial != nullptr) {
    constexpr int kAtOnce = 4;
    const ptx::AccumulatorLayout layout{static_cast<int>(threadIdx.x) % 32};
#pragma unroll
    for (int first = 0; first < Shape::kKeyTiles; first += kAtOnce) {
      float more[kAtOnce][4] = {};
#pragma unroll
      for (int i = 0; i < 4 * kAtOnce; ++i) {
        const int key = layout.column(8 * (first + i / 4), i), value = layout.row(0, i);
        if (key < problem.dk && value < values) more[i / 4][i % 4] = initial[key * problem.dv + value];
      }
#pragma unroll
      for (int i = 0; i < 4 * kAtOnce; ++i) {
        const float by = factors[layout.column(8 * (first + i / 4), i)];
        state.tile[first + i / 4][i % 4] += by == 0 ? 0 : by * more[i / 4][i % 4];
      }
    }
  }
  __syncthreads();
}

template <class T, int Dk, bool PerChannel>
SEQPAR_DEVICE void outputsOf(const Outputs& pass, const Item& item, char* shared) {
  using Shape = KernelShape<Dk>;
  using Layout = OutputsShared<Shape, PerChannel>;
  using Loaded = typename Layout::Loaded;
  using KeyTile = typename Loaded::KeyTile;
  constexpr bool kRaises = Numbers<T>::kRaises && !PerChannel;
  const LinearProblem& problem = pass.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t base = ptx::sharedAddress(shared);
  float* const decays = reinterpret_cast<float*>(shared + Layout::kDecays);
  uint2* const scores = reinterpret_cast<uint2*>(shared + Layout::kScores);
  uint32_t* const masks = reinterpret_cast<uint32_t*>(shared + Layout::kMasks);

  const int64_t tokens = item.end - item.begin;
  const int stages = static_cast<int>((tokens + kStageTokens - 1) / kStageTokens);
  const typename Loaded::Source source(problem, item);
  const float constant = PerChannel ? 0 : constantGate(problem, item.head);
  const auto loadStage = [&](int number) {
    if (number < stages) {
      const int64_t token = int64_t{number} * kStageTokens;
      Loaded::load(base + number % Layout::kStages * Loaded::kBytes, source, token, tokens - token);
    }
    ptx::cpAsyncCommitGroup();
  };
  for (int number = 0; number < Layout::kStages - 1; ++number) loadStage(number);
  const int column = item.tile * Shape::kValues + warp * Shape::kWarpValues;  // first column of v
  State<Shape> state;
  float raise = 1;  // power of 2 that the state is multiplied by
  startState(state, pass, item, decays, column);
  char* const out = static_cast<char*>(pass.out.data) + 2 * (item.batch * pass.out.batch + item.begin * pass.out.token +
                                                             item.head * pass.out.head + column);

  for (int number = 0; number < stages; ++number) {
    ptx::cpAsyncWaitGroup<Layout::kStages - 2>();
    __syncthreads();
    loadStage(number + Layout::kStages - 1);
    char* const loaded = shared + number % Layout::kStages * Loaded::kBytes;
    const uint32_t loadedAt = base + number % Layout::kStages * Loaded::kBytes;
    const int64_t token = int64_t{number} * kStageTokens;
    const int there = tokens - token < kStageTokens ? static_cast<int>(tokens - token) : kStageTokens;

    PreparedStage<Shape> stage;
    stage.queries = KeyTile::fragment(loadedAt + Loaded::kQueries, 0, lane);
    stage.keys = KeyTile::fragment(loadedAt + Loaded::kKeys, 0, lane);
    stage.decays = decays;
    stage.exactGroups = 0;
    stage.lane = lane;
    float sum = 0;  // without channels: of this lane's token
    if constexpr (PerChannel) {
      const GroupPlace place{loaded + Loaded::kQueries, loaded + Loaded::kKeys, loaded + Loaded::kGates, decays, warp};
      const bool exact = !PrepareGroup<T, Shape>::run(place, source.fullGates(), lane);
      if (lane == 0) masks[warp] = exact ? 1 : 0;
      if (__syncthreads_or(exact) != 0) {
        for (int group = 0; group < Shape::kWarps; ++group) stage.exactGroups |= masks[group] << group;
      }
    } else {
      sum = stageSum(source.tokenGates() ? reinterpret_cast<const float*>(loaded + Loaded::kGates) : nullptr, constant,
                     there, lane);
    }
    makeScores<T, Shape, PerChannel>(scores, loadedAt + Loaded::kQueries, loadedAt + Loaded::kKeys,
                                     loaded + Loaded::kGates, stage.exactGroups, sum, warp, lane);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      ptx::ldmatrixX4Trans(stage.values[block],
                           Loaded::ValueTile::fragmentAcross(loadedAt + Loaded::kValuesAt, block * kBlockTokens, lane) +
                               2 * Shape::kWarpValues * warp);
    }
    BlockOutputs outputs[2];
    [[maybe_unused]] float nextRaise = 1;
    stage.stateScale = stage.exactGroups == 0 ? state.template roundingScale<T>() : Numbers<T>::kStateScale;
    if constexpr (PerChannel) {
      if (stage.exactGroups == 0) {
        advanceSafe<T>(outputs, state, stage);
      } else {
        advanceExact<T>(outputs, state, stage);
      }
    } else {
      const float last = __shfl_sync(0xffffffffU, sum, 31), decay = ptx::ex2Approx(last);
      float toEnd = ptx::ex2Approx(last - sum), ofState = decay;
      if constexpr (kRaises) {
        constexpr float kMost = 0x1p87F;  // then a raised state is at most 2^101
        const float next = fminf(raiseOf(stage.values), kMost * (stage.stateScale * raise));
        ofState *= next * inversePower(raise);
        toEnd *= next;
        nextRaise = next;
      }
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        float factors[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          factors[i] = __shfl_sync(0xffffffffU, toEnd, ptx::AccumulatorLayout{lane}.term(block * kBlockTokens, i));
        }
        scaleValues<T>(stage.values[block], factors);
      }
      if (decay != 0) {
        advanceUniform<T, Shape, false>(outputs, state, stage, ofState);
      } else {
        advanceUniform<T, Shape, true>(outputs, state, stage, ofState);
      }
      // A decay of 0 from the start to a token discards the state's contribution, even NaN and infinity.
      const float fromStart = ptx::ex2Approx(sum);
#pragma unroll
      for (int half = 0; half < 4; ++half) {
        const float factor = __shfl_sync(0xffffffffU, fromStart, ptx::AccumulatorLayout{lane}.row(8 * half));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& number = outputs[half / 2].tile[i / 2][2 * (half % 2) + i % 2];
          number = factor == 0 ? 0 : number * factor;
        }
      }
      // Reloads v, without factors.
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        ptx::ldmatrixX4Trans(stage.values[block], Loaded::ValueTile::fragmentAcross(loadedAt + Loaded::kValuesAt,
                                                                                    block * kBlockTokens, lane) +
                                                      2 * Shape::kWarpValues * warp);
      }
    }
    __syncthreads();
    uint4 ready[kScoreBlocks];
#pragma unroll
    for (int block = 0; block < kScoreBlocks; ++block) {
      ready[block] = reinterpret_cast<const uint4*>(scores)[block * 32 + lane];
    }
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      if (Numbers<T>::kStateScale != 1) {
        const float back = 1 / (stage.stateScale * raise);
        outputs[block].each([&](float& number, int) { number *= back; });
      }
      const auto addScores = [&](const uint4& four, const uint32_t(&values)[4]) {
        const uint32_t a[4] = {four.x, four.y, four.z, four.w};
        outputs[block].template add<T>(a, values);
      };
      addScores(ready[block], stage.values[0]);
      if (block == 1) addScores(ready[2], stage.values[1]);
      outputs[block].each([&](float& number, int) { number *= problem.scale; });
      outputs[block].template store<T>(out + 2 * (token + block * kBlockTokens) * pass.out.token, 2 * pass.out.token,
                                       there - block * kBlockTokens, problem.dv - column);
    }
    if constexpr (kRaises) raise = nextRaise;
  }
  ptx::cpAsyncWaitGroup<0>();
  if (pass.finalState != nullptr && item.segment == pass.segments.count - 1) {
    if constexpr (kRaises) state.each([&](float& number, int, int) { number *= inversePower(raise); });
    state.store(pass.finalState + headIndex(item, problem) * problem.dk * problem.dv + column, problem.dk, problem.dv,
                problem.dv - column);
  }
}

template <class T, int Dk, bool PerChannel>
__global__ void __launch_bounds__(KernelShape<Dk>::kThreads, KernelShape<Dk>::kCtas)
    outputsKernel(const __grid_constant__ Outputs pass, int64_t items) {
  extern __shared__ __align__(1024) char shared[];
  ptx::griddepcontrolWait();
  const int tiles = (pass.problem.dv + KernelShape<Dk>::kValues - 1) / KernelShape<Dk>::kValues;
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    outputsOf<T, Dk, PerChannel>(
        pass, itemAt(index, pass.problem, pass.heads, pass.segments, allSegments(pass.segments), tiles), shared);
    __syncthreads();
  }
}

}  // namespace seqpar::attn
