// The scores of queries and keys of a chunk under decays a_t of its tokens, and their gradients.
//
//     qd_t  = q_t a_1 ... a_t                  queries decayed from the chunk's start
//     kd_t  = k_t a_(t+1) ... a_rows           keys decayed to its end
//     total = a_1 ... a_rows
//     P_ij  = sum over d of q_i k_j a_(j+1) ... a_i for j <= i, else 0
//
// Decays have `width` values per token, dk or 1. Decays per channel compute P in a tree: blocks of kLeaf tokens pair by
// pair, then pairs of neighboring blocks by one product each: queries decayed from the second block's start times keys
// decayed to the first block's end. No exponent is above 0.
#pragma once

#include <cstddef>
#include <functional>

#include "attn/linear/host/floats.h"
#include "attn/linear/host/segments.h"

namespace seqpar::attn::linear {

constexpr size_t kLeaf = 8;    ///< tokens with elementwise mutual scores
constexpr size_t kLevels = 3;  ///< of pairs of blocks: 8, 16 and 32 tokens

/// Arrays are dense: q and k [rows][dk], decays [rows][width], scores [rows] at a stride of kChunk.
class Scores {
 public:
  Scores(size_t dk, size_t width, bool gradients, Floats& memory);

  /// Stores rows first ... first + count - 1 of q, k and decays.
  using Load = std::function<void(size_t first, size_t count)>;

  /// -> scores(), queries(), keys(), total(). Calls `load` once for each row, before it reads the row: where the rows
  /// of a leaf are read next, they are still in the first cache.
  void compute(size_t rows, const float* q, const float* k, const float* decays, const Load& load = {});
  void decayKeys(size_t rows, const float* k, const float* decays);     ///< -> keys(), total()
  void decayQueries(size_t rows, const float* q, const float* decays);  ///< -> queries(), total()
  /// -> queries(), total(), bitwise equal to compute()'s.
  void decayQueriesAsScored(size_t rows, const float* q, const float* decays);

  /// After compute() with equal arguments. dq and dk: in: gradients of queries() and keys(); out: those plus the
  /// contribution of dScores, with respect to q and k. Overwrites dScores.
  void gradients(size_t rows, const float* q, const float* k, const float* decays, float* dScores, float* dq,
                 float* dk);

  float* scores() const { return scores_; }
  float* queries() const { return qd_; }
  float* keys() const { return kd_; }
  float* total() const { return total_; }

 private:
  void byToken(size_t rows, const float* q, const float* k, const float* decays);
  void byChannel(size_t rows, const float* q, const float* k, const float* decays, const Load& load);
  void mergeQueries(size_t rows, size_t level, size_t even, size_t size);
  void gradientsByToken(size_t rows, const float* q, const float* k, const float* decays, float* dScores, float* dq,
                        float* dk);
  void gradientsByChannel(size_t rows, const float* q, const float* k, const float* decays, const float* dScores,
                          float* dq, float* dk);
  /// The row of products_ with the decays over the tree block that starts at a token.
  float* product(size_t level, size_t token) const { return products_ + (level * kLeaves + token / kLeaf) * dk_; }
  /// Rows of the decayed queries and keys at a level of the tree.
  float* levelQueries(size_t level) const { return levels_ + 2 * level * kChunk * dk_; }
  float* levelKeys(size_t level) const { return levelQueries(level) + kChunk * dk_; }

  static constexpr size_t kLeaves = kChunk / kLeaf;

  size_t dk_, width_;
  float *qd_, *kd_, *scores_, *decayMatrix_, *total_, *row_, *products_;
  float* levels_ = nullptr;  // with gradients
};

}  // namespace seqpar::attn::linear
