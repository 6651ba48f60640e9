// One chunk of one head of the delta rule on a host, in the WY form (DeltaNet, arXiv 2406.06484, section 3.2; with
// decays: Gated DeltaNet, arXiv 2412.06464, section 3.3; Kimi Linear, arXiv 2510.26692, section 3).
//
// With a_t the decays, b_t the betas, S the state before the chunk and S' the one after it (rows are tokens, * scales
// rows), and the decayed queries and keys of host/scores.h:
//
//     KR_t  = k_t a_1 ... a_t, KE_t = k_t a_(t+1) ... a_rows, Q_t = q_t a_1 ... a_t
//     L_ij  = b_i sum over d of k_i k_j a_(j+1) ... a_i for j < i, else 0
//     R = v - KR S,  X = b * R,  (I + L) D = X           D: the values that the chunk writes
//     out = Q S + P D          S' = diag(total) S + KE^T D
//
// The map S -> A S + B of several chunks comes from the same steps on the columns [v | 0] from the state [0 | I], whose
// result is [B | A]: columns of a state never mix. D is found by substitution, never by a series in L, whose powers
// grow before they vanish.
#pragma once

#include <cstddef>

#include "attn/exec/tensor.h"
#include "attn/linear/host/scores.h"

namespace seqpar::attn::linear {

/// Sizes of a DeltaChunk.
struct DeltaSizes {
  size_t dk = 1, dv = 1, width = 1;
  bool gradients = false;
  bool maps = false;  ///< states of dv + dk columns
  size_t mostColumns() const { return maps ? dv + dk : dv; }
};

/// Scratch memory and the steps of one chunk. Callers only read the arrays. `columns` of a state: dv, or dv + dk.
class DeltaChunk {
 public:
  DeltaChunk(const DeltaSizes& sizes, Floats& memory);
  /// Size of a DeltaChunk's memory in fp32 elements.
  static size_t numbers(const DeltaSizes& sizes);

  /// Selects tokens first ... first + count - 1 of a batch entry.
  void place(size_t batch, size_t first, size_t count);
  size_t rows() const { return rows_; }

  void loadQueries(const Tensor& q, size_t head, float scale, bool normalize);
  void loadKeys(const Tensor& k, size_t head, bool normalize);
  void loadValues(const Tensor& v, size_t head);
  void loadOutGradients(const Tensor& dOut, size_t head);
  /// No data: decays of 1.
  void loadDecays(const Tensor& logarithms, size_t head);
  void loadBetas(const Tensor& beta, size_t head);

  void scoreKeys();     ///< keys, decays, betas -> KR, KE, -L, total
  void scoreQueries();  ///< queries, keys, decays -> Q, P
  /// values, after scoreKeys() -> R, D for a state [dk][columns].
  void write(const float* state, size_t columns);
  /// After write(): state = diag(total) state + KE^T D.
  void advance(float* state, size_t columns) const;
  /// After scoreQueries() and write() of dv columns: out [rows][dv].
  void output(const float* state, float* out) const;

  /// After scoreKeys() and scoreQueries(): x [dk][columns] in: the gradient of S', out: that of S. The gradient of out
  /// is 0 in the columns from dv on.
  void stateGradient(float* x, size_t columns);
  /// All gradients of one head, after scoreKeys(), scoreQueries() and write(): `state` is S, x as in stateGradient().
  void gradients(const float* state, float* x);
  float* queryGradients() const { return dq_; }  ///< of the scaled, normalized queries
  float* keyGradients() const { return dk_; }    ///< of the normalized keys
  float* valueGradients() const { return dv_; }
  float* gateGradients() const { return dGate_; }  ///< of the log-decays, [rows][width]
  float* betaGradients() const { return dBeta_; }
  /// In place, for sums over heads of queryGradients() and keyGradients(): gradients of the tensors' rows.
  void finishQueryGradients(float scale, bool normalize, float* dq) const;
  void finishKeyGradients(bool normalize, float* dk) const;

  float* out() const { return out_; }            ///< [kChunk][dv], for callers
  float* querySum() const { return querySum_; }  ///< [kChunk][dk], for callers; with gradients
  float* keySum() const { return keySum_; }

 private:
  void scoreGradients();
  void gradientOfGates();

  DeltaSizes sizes_;
  size_t batch_ = 0, first_ = 0, rows_ = 0;
  Scores keyScores_, queryScores_;
  float *q_, *k_, *v_, *decays_, *beta_, *queryInverse_, *keyInverse_;
  float *lower_, *residual_, *written_, *out_;
  // With gradients:
  float *dOut_ = nullptr, *dX_ = nullptr, *negative_ = nullptr, *dScores_ = nullptr, *dKeyScores_ = nullptr;
  float *dq_ = nullptr, *dk_ = nullptr, *dRow_ = nullptr, *dColumn_ = nullptr, *dv_ = nullptr, *sums_ = nullptr;
  float *dGate_ = nullptr, *dBeta_ = nullptr, *querySum_ = nullptr, *keySum_ = nullptr;
};

}  // namespace seqpar::attn::linear
