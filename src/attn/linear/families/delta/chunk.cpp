#include "attn/linear/families/delta/chunk.h"

#include <algorithm>

#include "attn/linear/families/delta/loops.h"
#include "attn/linear/host/tile.h"
#include "attn/linear/host/triangle.h"
#include "attn/linear/host/vector.h"

namespace seqpar::attn::linear {

DeltaChunk::DeltaChunk(const DeltaSizes& sizes, Floats& memory)
    : sizes_(sizes),
      keyScores_(sizes.dk, sizes.width, sizes.gradients, memory),
      queryScores_(sizes.dk, sizes.width, sizes.gradients, memory) {
  const size_t keys = kChunk * sizes.dk, values = kChunk * sizes.dv, wide = kChunk * sizes.mostColumns();
  q_ = memory.take(keys);
  k_ = memory.take(keys);
  v_ = memory.take(values);
  decays_ = memory.take(kChunk * sizes.width);
  beta_ = memory.take(kChunk);
  queryInverse_ = memory.take(kChunk);
  keyInverse_ = memory.take(kChunk);
  lower_ = memory.take(kChunk * kChunk);
  residual_ = memory.take(wide);
  written_ = memory.take(wide);
  out_ = memory.take(values);
  if (!sizes.gradients) return;
  dOut_ = memory.take(values);
  dX_ = memory.take(wide);
  negative_ = memory.take(wide);
  dScores_ = memory.take(kChunk * kChunk);
  dKeyScores_ = memory.take(kChunk * kChunk);
  for (auto** const array : {&dq_, &dk_, &dRow_, &dColumn_, &querySum_, &keySum_}) *array = memory.take(keys);
  dv_ = memory.take(values);
  sums_ = memory.take(2 * sizes.dk);
  dGate_ = memory.take(kChunk * sizes.width);
  dBeta_ = memory.take(2 * kChunk);
}

size_t DeltaChunk::numbers(const DeltaSizes& sizes) {
  Floats counting(nullptr);
  const DeltaChunk counted(sizes, counting);
  return counting.used();
}

void DeltaChunk::place(size_t batch, size_t first, size_t count) {
  batch_ = batch;
  first_ = first;
  rows_ = count;
}

void DeltaChunk::loadQueries(const Tensor& q, size_t head, float factor, bool normalize) {
  loadTile(q, batch_, first_, rows_, head, q_);
  if (normalize) normalizeRows(rows_, sizes_.dk, q_, queryInverse_);
  scale(factor, rows_ * sizes_.dk, q_);
}

void DeltaChunk::loadKeys(const Tensor& k, size_t head, bool normalize) {
  loadTile(k, batch_, first_, rows_, head, k_);
  if (normalize) normalizeRows(rows_, sizes_.dk, k_, keyInverse_);
}

void DeltaChunk::loadValues(const Tensor& v, size_t head) {
  loadTile(v, batch_, first_, rows_, head, v_);
}

void DeltaChunk::loadOutGradients(const Tensor& dOut, size_t head) {
  loadTile(dOut, batch_, first_, rows_, head, dOut_);
}

void DeltaChunk::loadDecays(const Tensor& logarithms, size_t head) {
  const size_t count = rows_ * sizes_.width;
  if (logarithms.data == nullptr) {
    std::fill_n(decays_, count, 1.0f);
    return;
  }
  loadTile(logarithms, batch_, first_, rows_, head, decays_);
  exponentiate(decays_, count, decays_);
}

void DeltaChunk::loadBetas(const Tensor& beta, size_t head) {
  loadTile(beta, batch_, first_, rows_, head, beta_);
}

void DeltaChunk::scoreKeys() {
  keyScores_.compute(rows_, k_, k_, decays_);
  negateScaledLower(beta_, rows_, kChunk, keyScores_.scores(), lower_);
}

void DeltaChunk::scoreQueries() {
  queryScores_.compute(rows_, q_, k_, decays_);
}

void DeltaChunk::write(const float* state, size_t columns) {
  const size_t dk = sizes_.dk;
  multiplyForgetting(rows_, columns, dk, {keyScores_.queries(), dk}, {state, columns}, false, residual_, columns);
  subtractFrom(v_, rows_, sizes_.dv, columns, residual_);
  scaleRows(beta_, rows_, columns, residual_, written_);
  solveLower(lower_, rows_, columns, written_);
}

void DeltaChunk::advance(float* state, size_t columns) const {
  const size_t dk = sizes_.dk;
  decayState(keyScores_.total(), sizes_.width, dk, columns, state, state);
  multiplyForgetting(dk, columns, rows_, {keyScores_.keys(), dk, true}, {written_, columns}, true, state, columns);
}

void DeltaChunk::output(const float* state, float* out) const {
  const size_t dk = sizes_.dk, dv = sizes_.dv;
  multiplyForgetting(rows_, dv, dk, {queryScores_.queries(), dk}, {state, dv}, false, out, dv);
  multiplyLowerForgetting(rows_, dv, {queryScores_.scores(), kChunk}, {written_, dv}, true, out, dv);
}

// With Y the gradient of S', dO that of out, and negative_ = -b * dX:
//     dX = (I + L)^-T (P^T dO + KE Y)        dS = diag(total) Y + Q^T dO + KR^T negative_
void DeltaChunk::stateGradient(float* x, size_t columns) {
  const size_t dk = sizes_.dk, dv = sizes_.dv;
  multiplyForgetting(rows_, columns, dk, {keyScores_.keys(), dk}, {x, columns}, false, dX_, columns);
  multiplyLowerForgetting(rows_, dv, {queryScores_.scores(), kChunk, true}, {dOut_, dv}, true, dX_, columns);
  solveLowerTransposed(lower_, rows_, columns, dX_);
  negateScaledRows(beta_, rows_, columns, dX_, negative_);
  decayState(keyScores_.total(), sizes_.width, dk, columns, x, x);
  multiplyForgetting(dk, dv, rows_, {queryScores_.queries(), dk, true}, {dOut_, dv}, true, x, columns);
  multiplyForgetting(dk, columns, rows_, {keyScores_.queries(), dk, true}, {negative_, columns}, true, x, columns);
}

void DeltaChunk::gradients(const float* state, float* x) {
  const size_t dk = sizes_.dk, dv = sizes_.dv;
  // Gradients of KE, which needs the gradient of S', and the terms of S' in those of the decays.
  multiply(rows_, dk, dv, {written_, dv}, {x, dv, true}, false, dk_, dk);
  std::fill_n(sums_, dk, 0.0f);
  addColumnSums(keyScores_.keys(), dk_, rows_, dk, sums_);
  float* const boundary = sums_ + dk;
  decayedRowSums(keyScores_.total(), sizes_.width, x, state, dk, dv, boundary);
  add(boundary, dk, sums_);
  stateGradient(x, dv);
  std::transform(negative_, negative_ + rows_ * dv, dv_, [](float value) { return -value; });
  multiply(rows_, dk, dv, {dOut_, dv}, {state, dv, true}, false, dq_, dk);        // of Q
  multiply(rows_, dk, dv, {negative_, dv}, {state, dv, true}, false, dRow_, dk);  // of KR
  scoreGradients();
  gradientOfGates();
}

// dP = dO D^T; dL = -strict(dX D^T), since T = (I + L)^-1 gives dL = -T^T (dD X^T) T^T = -dX D^T.
void DeltaChunk::scoreGradients() {
  const size_t dk = sizes_.dk, dv = sizes_.dv;
  multiplyToLower(rows_, dv, {dOut_, dv}, {written_, dv, true}, dScores_, kChunk);
  multiplyToLower(rows_, dv, {dX_, dv}, {written_, dv, true}, dKeyScores_, kChunk);
  float *const ofResidual = dBeta_, *const ofScores = dBeta_ + kChunk;
  rowDots(dX_, residual_, rows_, dv, dv, ofResidual);
  for (size_t i = 0; i < rows_; ++i) {
    ofScores[i] = 0;
    for (size_t j = 0; j < i; ++j) {
      const float score = keyScores_.scores()[i * kChunk + j];
      if (score != 0.0f) ofScores[i] += dKeyScores_[i * kChunk + j] * score;
    }
    dBeta_[i] = ofResidual[i] - ofScores[i];
  }
  negateScaledLower(beta_, rows_, kChunk, dKeyScores_, dKeyScores_);
  queryScores_.gradients(rows_, q_, k_, decays_, dScores_, dq_, dk_);
  std::fill_n(dColumn_, rows_ * dk, 0.0f);
  keyScores_.gradients(rows_, k_, k_, decays_, dKeyScores_, dRow_, dColumn_);
  add(dColumn_, rows_ * dk, dk_);
}

// The gradient of log a_t is the sum over tokens from t on of q dq + k (the gradients of k as a row, minus those as a
// column), plus the terms of S'.
void DeltaChunk::gradientOfGates() {
  const size_t dk = sizes_.dk, count = rows_ * dk;
  float* const difference = dColumn_;  // as a column, minus as a row
  std::transform(dk_, dk_ + count, dRow_, difference, [](float column, float row) { return column - row; });
  if (sizes_.width > 1) {
    attn::linear::gateGradients(decays_, q_, dq_, k_, difference, rows_, dk, sums_, dGate_);
  } else {
    float run = 0;
    for (size_t d = 0; d < dk; ++d) run += sums_[d];
    for (size_t t = rows_; t-- > 0;) {
      run += dot(q_ + t * dk, dq_ + t * dk, dk) - dot(k_ + t * dk, difference + t * dk, dk);
      if (decays_[t] == 0.0f) run = 0;
      dGate_[t] = run;
    }
  }
  add(dRow_, count, dk_);
}

void DeltaChunk::finishQueryGradients(float factor, bool normalize, float* dq) const {
  if (normalize) {
    normalizedGradients(rows_, sizes_.dk, q_, factor, queryInverse_, factor, dq);
  } else {
    scale(factor, rows_ * sizes_.dk, dq);
  }
}

void DeltaChunk::finishKeyGradients(bool normalize, float* dk) const {
  if (normalize) normalizedGradients(rows_, sizes_.dk, k_, 1.0f, keyInverse_, 1.0f, dk);
}

}  // namespace seqpar::attn::linear
