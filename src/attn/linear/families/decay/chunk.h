// One chunk of one head on a host: tokens that matrix products process together, gathered into dense fp32 arrays.
//
// With a_t the decays, the chunk's matrices are (ZeCO's letters, arXiv 2507.01004: Lambda, Gamma, gamma)
//
//     qd_t  = q_t a_1 ... a_t                  queries decayed from the chunk's start
//     kd_t  = k_t a_(t+1) ... a_rows           keys decayed to its end
//     total = a_1 ... a_rows
//     P_ij  = sum over d of q_i k_j a_(j+1) ... a_i for j <= i, else 0
//
//     out = P v + qd S          S' = diag(total) S + kd^T v          (S before, S' after the chunk)
#pragma once

#include <cstddef>

#include "attn/exec/tensor.h"
#include "attn/linear/host/scores.h"

namespace seqpar::attn::linear {

/// The decays a_t: `width` values per token, headDim or 1.
struct Decay {
  Tensor gate;         ///< log-decays. No data: all decays are 1
  bool fixed = false;  ///< one value per head: gate is [1][1][heads][1]
  size_t width = 1;
};

/// Scratch memory and the steps of one chunk. Callers only read the arrays; each step documents its inputs -> outputs.
class Chunk {
 public:
  Chunk(size_t dk, size_t dv, size_t width, bool gradients, Floats& memory);
  /// Size of a Chunk's memory in fp32 elements.
  static size_t numbers(size_t dk, size_t dv, size_t width, bool gradients);

  /// Selects tokens first ... first + count - 1 of a batch entry.
  void place(size_t batch, size_t first, size_t count);
  size_t rows() const { return rows_; }

  void loadQueries(const Tensor& q, size_t head, float scale);
  void loadKeys(const Tensor& k, size_t head);
  /// The values times the input gate, which may be absent: for gradients().
  void loadValues(const Tensor& v, const Tensor& inputGate, size_t head);
  /// The same for attendWithin() and updateState(), which multiply by them.
  void packValues(const Tensor& v, const Tensor& inputGate, size_t head);
  void loadDecays(const Decay& decay, size_t head);
  void loadOutGradients(const Tensor& dOut, size_t head);

  void decayKeys();     ///< keys, decays -> kd, total
  void decayQueries();  ///< queries, decays -> qd, total
  void score();         ///< queries, keys, decays -> P, qd, kd, total
  /// loadQueries(), loadKeys(), loadDecays() and score(), with each row read while it is in the first cache.
  void loadAndScore(const Tensor& q, const Tensor& k, size_t keyHead, float scale, const Decay& decay, size_t head);
  void decayQueriesAsScored();  ///< queries, decays -> qd, total, bitwise equal to score()'s

  /// out = P v, and out += qd state; state is [dk][dv].
  void attendWithin(float* out) const;
  void attendState(const float* state, float* out) const;
  /// attendState() without its search for decays of 0 that forget NaN or infinity. False: `out` is not valid, since
  /// there may be such decays.
  bool attendFiniteState(const float* state, float* out) const;
  /// to = diag(total) from + kd^T v; `from` null: 0. to may be from.
  void updateState(const float* from, float* to) const;
  /// to = diag(total) from + qd^T dOut, for the gradients of states.
  void updateStateGradient(const float* from, float* to) const;

  /// Gradients of one head, after score(): S the state before the chunk, X the gradient of the state after it. Writes
  /// dv to valueGradients(), dq (of the scaled queries) to queryGradients() and dk to keyGradients().
  void gradients(const float* state, const float* stateGradient);
  float* queryGradients() const { return dq_; }
  float* keyGradients() const { return dk_; }
  float* valueGradients() const { return dv_; }
  /// Gradients of the log-decays, [rows][width], after gradients() with equal arguments.
  const float* gateGradients(const float* state, const float* stateGradient);

  /// For values that loadValues() multiplied by an input gate, after gateGradients(): the gradients of that gate,
  /// [rows]. valueGradients() become those of the given values. Overwrites out().
  const float* inputGradients(const Tensor& v, size_t head);

  const float* total() const { return scores_.total(); }
  float* state() const { return state_; }                  ///< [dk][dv], for callers
  float* stateGradient() const { return stateGradient_; }  ///< [dk][dv], for callers; with gradients
  float* out() const { return out_; }                      ///< [kChunk][dv], for callers
  float* querySum() const { return querySum_; }            ///< [kChunk][dk], for callers; with gradients
  float* keySum() const { return keySum_; }

 private:
  void loadQueryRows(const Tensor& q, size_t head, float scale, size_t begin, size_t count);
  void loadDecayRows(const Decay& decay, size_t head, size_t begin, size_t count);

  size_t keySize_, valueSize_, width_;
  size_t batch_ = 0, first_ = 0, rows_ = 0;
  Scores scores_;
  float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *decays_ = nullptr, *state_ = nullptr, *out_ = nullptr;
  float* packedV_ = nullptr;
  float* input_ = nullptr;  ///< [kChunk]: the input gate
  // With gradients:
  float *dOut_ = nullptr, *dScores_ = nullptr, *dq_ = nullptr, *dk_ = nullptr, *dv_ = nullptr;
  float* dInput_ = nullptr;
  float *sums_ = nullptr, *dGate_ = nullptr, *stateGradient_ = nullptr, *querySum_ = nullptr, *keySum_ = nullptr;
};

}  // namespace seqpar::attn::linear
