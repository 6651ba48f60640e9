// A stage of tokens in shared memory: the tiles of q, k and v and the gates, loaded ahead of their use.
#pragma once

#include "kernels/attn/linear/gate_tile.cuh"
#include "kernels/attn/linear/work.h"

namespace seqpar::attn {

/// Where an item's rows begin in device memory, at its first token, and how far apart they are, in bytes.
struct Rows {
  const char* at = nullptr;
  int64_t stride = 0;
};
__device__ __forceinline__ Rows rowsOf(const Input& tensor, const Item& item, int head, int column, int elementSize) {
  const int64_t first = item.batch * tensor.batch + item.begin * tensor.token + int64_t{head} * tensor.head + column;
  return {static_cast<const char*>(tensor.data) + first * elementSize, tensor.token * elementSize};
}

/// `WithQueries`: the forward's pass 1 has no use for q.
template <class Shape, bool PerChannel, bool WithQueries>
struct Stage {
  using KeyTile = Tile<Shape::kDk>;
  using ValueTile = Tile<Shape::kValues>;
  static constexpr int kKeyBytes = kStageTokens * KeyTile::kRowBytes;
  static constexpr int kValueBytes = kStageTokens * ValueTile::kRowBytes;
  static constexpr int kQueries = 0;
  static constexpr int kKeys = WithQueries ? kKeyBytes : 0;
  static constexpr int kValuesAt = kKeys + kKeyBytes;
  static constexpr int kGates = kValuesAt + kValueBytes;
  static constexpr int kBytes = kGates + (PerChannel ? GateTile<Shape>::kBytes : kStageTokens * 4);

  /// What an item's stages are loaded from.
  struct Source {
    Rows q, k, v, gates;
    int dk, values;  ///< numbers of a row that are there
    bool fullGates, tokenGates;

    __device__ __forceinline__ Source(const LinearProblem& problem, const Item& item)
        : k(rowsOf(problem.k, item, qkHead(problem, item.head), 0, 2)),
          v(rowsOf(problem.v, item, item.head, item.tile * Shape::kValues, 2)),
          dk(problem.dk),
          values(problem.dv - item.tile * Shape::kValues),
          fullGates(problem.gateType == seqparFloat32),
          tokenGates(problem.gate == Gate::Token) {
      if (WithQueries) q = rowsOf(problem.q, item, qkHead(problem, item.head), 0, 2);
      if (PerChannel || tokenGates) gates = rowsOf(problem.gates, item, item.head, 0, fullGates ? 4 : 2);
    }
  };

  /// All threads: the rows from `token` of the item on, of which `rows` are there.
  static __device__ __forceinline__ void load(uint32_t to, const Source& from, int64_t token, int64_t there) {
    const int rows = there < kStageTokens ? static_cast<int>(there) : kStageTokens;
    if (rows <= 0) return;
    if (WithQueries) {
      KeyTile::template load<kStageTokens, kThreads>(to + kQueries, from.q.at + token * from.q.stride, from.q.stride,
                                                     rows, from.dk);
    }
    KeyTile::template load<kStageTokens, kThreads>(to + kKeys, from.k.at + token * from.k.stride, from.k.stride, rows,
                                                   from.dk);
    ValueTile::template load<kStageTokens, kThreads>(to + kValuesAt, from.v.at + token * from.v.stride, from.v.stride,
                                                     rows, from.values);
    const char* const gates = from.gates.at + token * from.gates.stride;
    if (PerChannel) {
      GateTile<Shape>::load(to + kGates, gates, from.gates.stride, rows, from.dk, from.fullGates);
    } else if (from.tokenGates && threadIdx.x < kStageTokens) {
      const int row = static_cast<int>(threadIdx.x);
      copy4(to + kGates + 4 * row, row < rows ? gates + row * from.gates.stride : gates, row < rows);
    }
  }
};

/// The sum of log2-decays from the start of this lane's block to its token, for the 32 tokens of a stage: gates of each
/// token, or `constant` for all of the `rows` that are there. `resets`: bit t, a sequence starts at token t.
__device__ __forceinline__ float blockSums(const float* tokenGates, float constant, int rows, uint32_t resets) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = log2Decay(tokenGates != nullptr ? tokenGates[lane] : (lane < rows ? constant : 0.0F));
  if ((resets >> lane & 1) != 0) sum = kLeastLog2;
#pragma unroll
  for (int distance = 1; distance < kBlockTokens; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffU, sum, distance, kBlockTokens);
    if (lane % kBlockTokens >= distance) sum += other;
  }
  return sum;
}

/// The gate that all tokens of a head have, where they have none of their own.
__device__ __forceinline__ float constantGate(const LinearProblem& problem, int head) {
  return problem.gate == Gate::Head ? static_cast<const float*>(problem.gates.data)[head] : 0.0F;
}

}  // namespace seqpar::attn
