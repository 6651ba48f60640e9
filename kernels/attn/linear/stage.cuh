// A stage of tokens in shared memory: the tiles of q, k and v and the gates, loaded in advance.
#pragma once

#include "kernels/attn/linear/gate_tile.cuh"
#include "kernels/attn/linear/work.h"

namespace seqpar::attn {

/// The address in device memory of an item's rows, at its first token.
SEQPAR_DEVICE const char* rowsOf(const Input& tensor, const Item& item, int head, int column, int elementSize) {
  const int64_t first = item.batch * tensor.batch + item.begin * tensor.token + int64_t{head} * tensor.head + column;
  return static_cast<const char*>(tensor.data) + first * elementSize;
}

/// `WithQueries`: false in the forward's pass 1, which does not use q.
template <class Shape, bool PerChannel, bool WithQueries>
struct Stage {
  using KeyTile = Tile<Shape::kDk>;
  using ValueTile = Tile<Shape::kValues>;
  static constexpr int kKeyBytes = KeyTile::kBytes;
  static constexpr int kValueBytes = ValueTile::kBytes;
  static constexpr int kQueries = 0;
  static constexpr int kKeys = WithQueries ? kKeyBytes : 0;
  static constexpr int kValuesAt = kKeys + kKeyBytes;
  static constexpr int kGates = kValuesAt + kValueBytes;
  static constexpr int kBytes = kGates + (PerChannel ? GateTile<Shape>::kBytes : kStageTokens * 4);

  /// Sources of an item's stages. Strides stay in the kernel's parameters, to save registers.
  struct Source {
    const LinearProblem& problem;
    const char *q = nullptr, *k, *v, *gates = nullptr;
    int values;  ///< valid columns of v

    SEQPAR_DEVICE Source(const LinearProblem& of, const Item& item)
        : problem(of),
          k(rowsOf(of.k, item, qkHead(of, item.head), 0, 2)),
          v(rowsOf(of.v, item, item.head, item.tile * Shape::kValues, 2)),
          values(of.dv - item.tile * Shape::kValues) {
      if (WithQueries) q = rowsOf(of.q, item, qkHead(of, item.head), 0, 2);
      if (PerChannel || tokenGates()) gates = rowsOf(of.gates, item, item.head, 0, gateSize());
    }
    SEQPAR_DEVICE bool tokenGates() const { return problem.gate == Gate::Token; }
    SEQPAR_DEVICE bool fullGates() const { return problem.gateType == seqparFloat32; }
    SEQPAR_DEVICE int gateSize() const { return fullGates() ? 4 : 2; }
  };

  /// Called by all threads. Loads min(there, kStageTokens) rows of the item starting at `token`; zero-fills the rest.
  static SEQPAR_DEVICE void load(uint32_t to, const Source& from, int64_t token, int64_t there) {
    const LinearProblem& problem = from.problem;
    const int rows = there < kStageTokens ? static_cast<int>(there) : kStageTokens;
    const auto loadTile = [&](auto tile, int place, const char* at, int64_t tokenStride, int columns) {
      decltype(tile)::template load<Shape::kThreads>(to + place, at + token * tokenStride * 2, tokenStride * 2, rows,
                                                     columns);
    };
    if (WithQueries) loadTile(KeyTile(), kQueries, from.q, problem.q.token, problem.dk);
    loadTile(KeyTile(), kKeys, from.k, problem.k.token, problem.dk);
    loadTile(ValueTile(), kValuesAt, from.v, problem.v.token, from.values);
    if (!PerChannel && !from.tokenGates()) return;
    const int64_t stride = problem.gates.token * from.gateSize();
    const char* const gates = from.gates + token * stride;
    if (PerChannel) {
      GateTile<Shape>::load(to + kGates, gates, stride, rows, problem.dk, from.fullGates());
    } else if (threadIdx.x < kStageTokens) {
      const int row = static_cast<int>(threadIdx.x);
      ptx::cpAsync4(to + kGates + 4 * row, row < rows ? gates + row * stride : gates, row < rows);
    }
  }
};

/// The sum of log2-decays from the start of a stage to this lane's token: token gates, or `constant` for `rows` valid
/// rows.
SEQPAR_DEVICE float stageSum(const float* tokenGates, float constant, int rows, int lane) {
  float sum = log2Decay(tokenGates != nullptr ? tokenGates[lane] : (lane < rows ? constant : 0.0F));
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffU, sum, distance);
    if (lane >= distance) sum += other;
  }
  return sum;
}

/// The gate of all tokens of a head, for gates without a token dimension.
SEQPAR_DEVICE float constantGate(const LinearProblem& problem, int head) {
  return problem.gate == Gate::Head ? static_cast<const float*>(problem.gates.data)[head] : 0.0F;
}

}  // namespace seqpar::attn
