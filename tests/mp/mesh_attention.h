// Naive attention for tests: its values, its tiles, and the whole computation on one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "common/backend.h"

namespace seqpar::test {

/// The problem of one test, the same on all ranks. Token t of rank r is number t * ranks + r of the sequence (striped).
struct MeshAttention {
  std::uint64_t seed = 0;
  std::vector<int> tokens;  ///< of each rank's block; 0 is possible
  int heads = 1, kvHeads = 1, dk = 1, dv = 1;
  bool causal = false;
  /// Values of -1, 0 and 1, so that the unnormalized attention below is exact.
  bool integers = false;

  int ranks() const { return static_cast<int>(tokens.size()); }
  int tokensOf(int rank) const { return tokens[static_cast<std::size_t>(rank)]; }
  int kvHeadOf(int head) const { return head / (heads / kvHeads); }
  bool sees(int queryRank, int query, int keyRank, int key) const {
    return !causal || key * ranks() + keyRank <= query * ranks() + queryRank;
  }
};

enum class Tensor { Q, K, V, Do };

/// [tokens][heads or kvHeads][dk or dv] of a rank's block; values from -1 to 1, and scores too, unless integers.
Vector<float> blockOf(const MeshAttention& attention, Tensor tensor, int rank);
int rowLength(const MeshAttention& attention, Tensor tensor);

/// Partial outputs of a block: o [tokens][heads][dv], normalized; lse [heads][tokens].
struct Outputs {
  Vector<float> o, lse;
};
/// Of no keys: lse -inf, and NaN, which must not matter.
Outputs noOutputs(const MeshAttention& attention, int rank);
/// Merges the attention of a block of queries to a block of keys and values into `outputs`.
void attend(const MeshAttention& attention, const float* q, int queryRank, const float* k, const float* v, int keyRank,
            Outputs& outputs);
/// Of one rank's queries, to all keys and values, in double.
Outputs referenceOutputs(const MeshAttention& attention, int rank);

/// The gradients of attention without its softmax, o = (q k^T) v: exact for integers.
struct Gradients {
  Vector<float> dq, dk, dv;  ///< as q, k, v
};
/// Adds a tile's: dq of the block of queries, dk and dv of the block of keys.
void addGradients(const MeshAttention& attention, const float* q, const float* dO, int queryRank, const float* k,
                  const float* v, int keyRank, float* dq, float* dk, float* dv);
/// Of one rank's block, from all others.
Gradients referenceGradients(const MeshAttention& attention, int rank);

}  // namespace seqpar::test
