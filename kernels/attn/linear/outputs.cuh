// Pass 3 of the forward: outputs of segments, each from the state before it. The recurrence goes by blocks of 16
// tokens: o = (q 2^L) S + scores v, then S = 2^Lend S + (k 2^(Lend - L))^T v; so scores are 16 x 16, and no decay of a
// longer stretch is ever needed.
#pragma once

#include "kernels/attn/linear/prepare.cuh"
#include "kernels/attn/linear/stage.cuh"
#include "kernels/attn/linear/starts.cuh"
#include "kernels/attn/linear/state.cuh"

namespace seqpar::attn {

template <class Shape, bool PerChannel>
struct OutputsShared {
  using Loaded = Stage<Shape, PerChannel, true>;
  static constexpr int kStages = Shape::kDk == 256 ? (PerChannel ? 2 : 3) : (PerChannel ? 2 : 4);
  static constexpr int kScores = kStages * Loaded::kBytes;     ///< of each warp of a stage: [2][32] float4
  static constexpr int kDecays = kScores + kWarps * 1024;      ///< [2][dk]
  static constexpr int kMasks = kDecays + 2 * Shape::kDk * 4;  ///< of each warp: its groups that are exact
  static constexpr int kNumbers = kMasks + kWarps * 4;         ///< for StartCursor
  static constexpr int kBytes = kNumbers + kWarps * 8;
};

/// The tiles of C of a block's outputs: 16 tokens, kWarpValues columns.
template <class Shape>
struct BlockOutputs {
  float tile[2 * Shape::kValueTiles][4];

  __device__ __forceinline__ void clear() {
    each([](float& number, int) { number = 0; });
  }
  /// act(number, token).
  template <class Act>
  __device__ __forceinline__ void each(const Act& act) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < 2 * Shape::kValueTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) act(tile[n][e], lane / 4 + 8 * (e / 2));
    }
  }

  /// += A times the columns whose B is the fragment of the transpose.
  template <class T>
  __device__ __forceinline__ void add(int value, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    Numbers<T>::multiply(tile[2 * value], a, b[0], b[2]);
    Numbers<T>::multiply(tile[2 * value + 1], a, b[1], b[3]);
  }

  /// Writes 16 bytes a lane: the four lanes that have a row exchange what they have of its columns. `at` is column 0 of
  /// the warp's slice in the block's first row; `rows` rows and `values` columns are there.
  template <class T>
  __device__ __forceinline__ void store(char* at, int64_t stride, int rows, int values) {
    const int lane = static_cast<int>(threadIdx.x) % 32, place = lane % 4;
    uint32_t two[2 * 2 * Shape::kValueTiles];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < 2 * Shape::kValueTiles; ++n) {
        two[half * 2 * Shape::kValueTiles + n] = Numbers<T>::pack(tile[n][2 * half], tile[n][2 * half + 1]);
      }
    }
#pragma unroll
    for (int four = 0; four < Shape::kValueTiles; ++four) {
      uint32_t(&words)[4] = *reinterpret_cast<uint32_t(*)[4]>(two + 4 * four);
      exchange<1>(words, place);
      exchange<2>(words, place);
      const int index = 4 * four + place;  // of the tile that this lane has now, among those of both halves
      const int row = lane / 4 + 8 * (index / (2 * Shape::kValueTiles));
      const int column = 8 * (index % (2 * Shape::kValueTiles));
      if (row < rows && column < values) {
        *reinterpret_cast<uint4*>(at + row * stride + column * 2) = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }

 private:
  /// One step of the 4 x 4 transpose among four lanes.
  template <int Distance>
  static __device__ __forceinline__ void exchange(uint32_t (&words)[4], int place) {
    const bool upper = (place & Distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & Distance) != 0) continue;
      uint32_t& low = words[i];
      uint32_t& high = words[i + Distance];
      const uint32_t got = __shfl_xor_sync(0xffffffffU, upper ? low : high, Distance);
      if (upper) {
        low = got;
      } else {
        high = got;
      }
    }
  }
};

/// B of q S for channels 16 * step on, of value tile `value`: S rounded after `change`.
template <class T, class Shape, class Change>
__device__ __forceinline__ void roundState(const State<Shape>& state, int step, int value, const Change& change,
                                           uint32_t (&b)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&tile)[4] = state.tile[value][2 * step + half];
    b[2 * half] = Numbers<T>::pack(change(tile[0]), change(tile[1]));
    b[2 * half + 1] = Numbers<T>::pack(change(tile[2]), change(tile[3]));
  }
}

/// outputs += q S for a state with numbers that are not finite, of which those are left out that a decay of 0 forgets
/// within the block: a query that is 0 meets no such number, the others become NaN.
template <class T, class Shape>
__device__ __forceinline__ void multiplyNotFinite(BlockOutputs<Shape>& outputs, const State<Shape>& state,
                                                  uint32_t queries, int row, int lane) {
  BlockOutputs<Shape> meetings;
  meetings.clear();
  for (int step = 0; step < Shape::kDk / 16; ++step) {
    uint32_t a[4], marks[4];
    loadMatrices(a, queries + Tile<Shape::kDk>::fragment(row, 16 * step, lane));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = Numbers<T>::unpack(a[i]);
      marks[i] = Numbers<T>::pack(two.x != 0 ? 1 : 0, two.y != 0 ? 1 : 0);
    }
#pragma unroll
    for (int value = 0; value < Shape::kValueTiles; ++value) {
      // A run-time step would put the state to local memory: chosen by predicates instead.
      uint32_t clean[4] = {}, bad[4] = {};
#pragma unroll
      for (int s = 0; s < Shape::kDk / 16; ++s) {
        if (s != step) continue;
        roundState<T>(
            state, s, value, [](float x) { return isfinite(x) ? x * Numbers<T>::kStateScale : 0; }, clean);
        roundState<T>(
            state, s, value, [](float x) { return isfinite(x) ? 0 : 1; }, bad);
      }
      outputs.template add<T>(value, a, {clean[0], clean[1], clean[2], clean[3]});
      meetings.template add<T>(value, marks, {bad[0], bad[1], bad[2], bad[3]});
    }
  }
#pragma unroll
  for (int n = 0; n < 2 * Shape::kValueTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (meetings.tile[n][e] != 0) outputs.tile[n][e] = NAN;
    }
  }
}

/// Tiles of the stage, and what was prepared for one block of it.
struct PreparedBlock {
  uint32_t q, k, v;
  int row, column;       ///< first row; first column of this warp's slice of v
  const float* decay;    ///< per channel: 2^Lend
  uint32_t exactGroups;  ///< per channel: bit g, k of group g is k 2^(Lend - L), otherwise k 2^-L
};

/// outputs = q S, and S to the block's end, with decays of each channel. `Safe`: exactGroups is 0.
template <class T, class Shape, bool Safe>
__device__ __forceinline__ void advanceChannels(BlockOutputs<Shape>& outputs, State<Shape>& state,
                                                const PreparedBlock& block,
                                                const uint32_t (&values)[Shape::kValueTiles][4], int lane) {
  using KeyTile = Tile<Shape::kDk>;
  const bool notFinite = !Safe && state.anyNotFinite();
  if (!Safe && notFinite) multiplyNotFinite<T>(outputs, state, block.q, block.row, lane);
#pragma unroll
  for (int step = 0; step < Shape::kDk / 16; ++step) {
    if (Safe || !notFinite) {
      uint32_t queries[4];
      loadMatrices(queries, block.q + KeyTile::fragment(block.row, 16 * step, lane));
#pragma unroll
      for (int value = 0; value < Shape::kValueTiles; ++value) {
        uint32_t rounded[4];
        roundState<T>(
            state, step, value, [](float x) { return x * Numbers<T>::kStateScale; }, rounded);
        Numbers<T>::multiply(outputs.tile[2 * value], queries, rounded[0], rounded[2]);
        Numbers<T>::multiply(outputs.tile[2 * value + 1], queries, rounded[1], rounded[3]);
      }
    }
    const bool safe = Safe || (block.exactGroups >> (16 * step / Shape::kGroup) & 1) == 0;
    if (!safe) state.template scale<true>(step, block.decay);
    uint32_t keys[4];
    loadTransposed(keys, block.k + KeyTile::fragment(block.row, 16 * step, lane));
    state.template add<T>(step, values, keys);
    if (safe) state.template scale<false>(step, block.decay);
  }
}

/// The state before an item's segment: this rank's tokens before it, and `initial` decayed over them. `factors` has a
/// number for each channel.
template <class Shape>
__device__ __forceinline__ void startState(State<Shape>& state, const Outputs& pass, const Item& item, float* factors,
                                           int column) {
  const LinearProblem& problem = pass.problem;
  const int width = decayWidth(problem);
  const int64_t firstMap = headIndex(item, problem) * pass.segments.count;
  if (pass.initial != nullptr) {
    for (int channel = static_cast<int>(threadIdx.x); channel < Shape::kDk; channel += kThreads) {
      float sum = 0;
      if (channel < problem.dk) {
        for (int segment = 0; segment < item.segment; ++segment) {
          sum += pass.maps.logDecays[(firstMap + segment) * width + (width > 1 ? channel : 0)];
        }
      }
      factors[channel] = exp2Fast(sum * kLog2e);
    }
  }
  __syncthreads();
  const int64_t size = int64_t{problem.dk} * problem.dv;
  const float* const before = item.segment > 0 ? pass.maps.states + (firstMap + item.segment) * size + column : nullptr;
  const float* const initial =
      pass.initial != nullptr ? pass.initial + headIndex(item, problem) * size + column : nullptr;
  state.each([&](float& number, int key, int value) {
    number = 0;
    if (key >= problem.dk || value >= problem.dv - column) return;
    if (before != nullptr) number = before[key * problem.dv + value];
    if (initial != nullptr && factors[key] != 0) number += factors[key] * initial[key * problem.dv + value];
  });
  __syncthreads();
}

template <class T, int Dk, bool PerChannel>
__device__ __forceinline__ void outputsOf(const Outputs& pass, const Item& item, char* shared) {
  using Shape = KernelShape<Dk>;
  using Layout = OutputsShared<Shape, PerChannel>;
  using Loaded = typename Layout::Loaded;
  const LinearProblem& problem = pass.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t base = sharedAddress(shared);
  float* const decays = reinterpret_cast<float*>(shared + Layout::kDecays);
  float4* const scoresOfWarps = reinterpret_cast<float4*>(shared + Layout::kScores);
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
    commitCopies();
  };
  for (int number = 0; number < Layout::kStages - 1; ++number) loadStage(number);
  const int column = item.tile * Shape::kValues + warp * Shape::kWarpValues;  // of v
  State<Shape> state;
  startState(state, pass, item, decays, column);
  StartCursor starts(problem, item.begin, reinterpret_cast<int64_t*>(shared + Layout::kNumbers));
  char* const out = static_cast<char*>(pass.out.data) + 2 * (item.batch * pass.out.batch + item.begin * pass.out.token +
                                                             item.head * pass.out.head + column);

  for (int number = 0; number < stages; ++number) {
    waitCopies<Layout::kStages - 2>();
    __syncthreads();
    loadStage(number + Layout::kStages - 1);
    char* const stage = shared + number % Layout::kStages * Loaded::kBytes;
    const uint32_t stageAt = base + number % Layout::kStages * Loaded::kBytes;
    const int64_t token = int64_t{number} * kStageTokens;
    const int there = tokens - token < kStageTokens ? static_cast<int>(tokens - token) : kStageTokens;
    const uint32_t resets = starts.stage(item.begin + token, item.begin + token + there);
    float sums = 0;  // without channels: of this lane's token, in its block
    {
      const int block = warp / 2;
      float scores[2][4] = {};
      uint32_t exact = 0;
      if constexpr (PerChannel) {
#pragma unroll
        for (int i = 0; i < Shape::kGroupsOfWarp; ++i) {
          const int group = warp % 2 * Shape::kGroupsOfWarp + i;
          const BlockPlace place{stage + Loaded::kQueries, stage + Loaded::kKeys, stage + Loaded::kGates,
                                 decays + block * Dk,      block * kBlockTokens,  group};
          const uint32_t blockResets = resets >> (block * kBlockTokens) & 0xffffU;
          if (!PrepareBlock<T, Shape>::run(place, blockResets, source.fullGates, lane, scores)) exact |= 1U << group;
        }
        if (lane == 0) masks[warp] = exact;
      } else {
#pragma unroll
        for (int step = 0; step < Shape::kHalf / 16; ++step) {
          const int channel = warp % 2 * Shape::kHalf + 16 * step;
          uint32_t a[4], b[4];
          loadMatrices(a, stageAt + Loaded::kQueries + Loaded::KeyTile::fragment(block * kBlockTokens, channel, lane));
          loadMatrices(b,
                       stageAt + Loaded::kKeys + Loaded::KeyTile::fragmentAcross(block * kBlockTokens, channel, lane));
          Numbers<T>::multiply(scores[0], a, b[0], b[1]);
          Numbers<T>::multiply(scores[1], a, b[2], b[3]);
        }
        sums = blockSums(source.tokenGates ? reinterpret_cast<const float*>(stage + Loaded::kGates) : nullptr, constant,
                         there, resets);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        scoresOfWarps[(warp * 2 + tile) * 32 + lane] =
            make_float4(scores[tile][0], scores[tile][1], scores[tile][2], scores[tile][3]);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int number16 = 0; number16 < 2; ++number16) {
      const int row = number16 * kBlockTokens;
      if (row >= there) break;
      float scores[2][4];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const float4 one = scoresOfWarps[(number16 * 4 + tile) * 32 + lane];
        const float4 two = scoresOfWarps[(number16 * 4 + 2 + tile) * 32 + lane];
        scores[tile][0] = one.x + two.x;
        scores[tile][1] = one.y + two.y;
        scores[tile][2] = one.z + two.z;
        scores[tile][3] = one.w + two.w;
      }
      uint32_t values[Shape::kValueTiles][4];
      loadValues<Shape>(values, stageAt + Loaded::kValuesAt, row, warp * Shape::kWarpValues, lane);
      BlockOutputs<Shape> outputs;
      outputs.clear();
      PreparedBlock block{stageAt + Loaded::kQueries,
                          stageAt + Loaded::kKeys,
                          stageAt + Loaded::kValuesAt,
                          row,
                          column,
                          decays + number16 * Dk,
                          0};
      float sumOfRow[2] = {}, sumOfColumn[4] = {}, last = 0;
      if constexpr (PerChannel) {
        block.exactGroups = masks[2 * number16] | masks[2 * number16 + 1];
        if (block.exactGroups == 0) {
          advanceChannels<T, Shape, true>(outputs, state, block, values, lane);
        } else {
          advanceChannels<T, Shape, false>(outputs, state, block, values, lane);
        }
      } else {
        last = __shfl_sync(0xffffffffU, sums, row + kBlockTokens - 1);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sumOfColumn[i] = __shfl_sync(0xffffffffU, sums, row + 2 * (lane % 4) + i % 2 + 8 * (i / 2));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) sumOfRow[i] = __shfl_sync(0xffffffffU, sums, row + lane / 4 + 8 * i);
#pragma unroll
        for (int step = 0; step < Dk / 16; ++step) {
          uint32_t queries[4];
          loadMatrices(queries, block.q + Loaded::KeyTile::fragment(row, 16 * step, lane));
#pragma unroll
          for (int value = 0; value < Shape::kValueTiles; ++value) {
            uint32_t rounded[4];
            roundState<T>(
                state, step, value, [](float x) { return x * Numbers<T>::kStateScale; }, rounded);
            Numbers<T>::multiply(outputs.tile[2 * value], queries, rounded[0], rounded[2]);
            Numbers<T>::multiply(outputs.tile[2 * value + 1], queries, rounded[1], rounded[3]);
          }
        }
      }
      if (Numbers<T>::kStateScale != 1) {
        outputs.each([](float& number, int) { number *= 1 / Numbers<T>::kStateScale; });
      }
      if constexpr (!PerChannel) {
        const float factors[2] = {exp2Fast(sumOfRow[0]), exp2Fast(sumOfRow[1])};
#pragma unroll
        for (int n = 0; n < 2 * Shape::kValueTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            outputs.tile[n][e] = factors[e / 2] == 0 ? 0 : outputs.tile[n][e] * factors[e / 2];
          }
        }
      }
      // Scores of later keys are dropped, not multiplied by 0: they may have overflowed.
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const bool past = 8 * tile + 2 * (lane % 4) + e % 2 <= lane / 4 + 8 * (e / 2);
          float score = scores[tile][e];
          if (!PerChannel && past) score *= exp2Fast(sumOfRow[e / 2] - sumOfColumn[2 * tile + e % 2]);
          scores[tile][e] = past ? score : 0;
        }
      }
      const uint32_t a[4] = {Numbers<T>::pack(scores[0][0], scores[0][1]), Numbers<T>::pack(scores[0][2], scores[0][3]),
                             Numbers<T>::pack(scores[1][0], scores[1][1]),
                             Numbers<T>::pack(scores[1][2], scores[1][3])};
#pragma unroll
      for (int value = 0; value < Shape::kValueTiles; ++value) outputs.template add<T>(value, a, values[value]);
      outputs.each([&](float& number, int) { number *= problem.scale; });
      outputs.template store<T>(out + 2 * (token + row) * pass.out.token, 2 * pass.out.token, there - row,
                                problem.dv - column);
      if constexpr (!PerChannel) {
        const float decay = exp2Fast(last);
        if (decay != 1) state.scaleAll(decay);
        float factors[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[i] = exp2Fast(last - sumOfColumn[i]);
        scaleValues<T, Shape>(values, factors);
#pragma unroll
        for (int step = 0; step < Dk / 16; ++step) {
          uint32_t keys[4];
          loadTransposed(keys, block.k + Loaded::KeyTile::fragment(row, 16 * step, lane));
          state.template add<T>(step, values, keys);
        }
      }
    }
  }
  waitCopies<0>();
  if (pass.finalState != nullptr && item.segment == pass.segments.count - 1) {
    state.store(pass.finalState + headIndex(item, problem) * problem.dk * problem.dv + column, problem.dk, problem.dv,
                problem.dv - column);
  }
}

template <class T, int Dk, bool PerChannel>
__global__ void __launch_bounds__(kThreads, Dk == 256 ? 1 : 2)
    outputsKernel(const __grid_constant__ Outputs pass, int64_t items) {
  extern __shared__ __align__(1024) char shared[];
  cudaGridDependencySynchronize();
  const int tiles = (pass.problem.dv + KernelShape<Dk>::kValues - 1) / KernelShape<Dk>::kValues;
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    outputsOf<T, Dk, PerChannel>(
        pass, itemAt(index, pass.problem, pass.heads, pass.segments, pass.segments.count, tiles), shared);
    __syncthreads();
  }
}

}  // namespace seqpar::attn
