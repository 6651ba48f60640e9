#include "attn/linear/families/decay/chunk.h"

#include <algorithm>

#include "attn/linear/host/tile.h"
#include "attn/linear/host/triangle.h"
#include "attn/linear/host/vector.h"
#include "base/sgemm.h"

namespace seqpar::attn::linear {

Chunk::Chunk(size_t keySize, size_t valueSize, size_t width, bool gradients, Floats& memory)
    : keySize_(keySize), valueSize_(valueSize), width_(width), scores_(keySize, width, gradients, memory) {
  const size_t keys = kChunk * keySize_, values = kChunk * valueSize_;
  q_ = memory.take(keys);
  k_ = memory.take(keys);
  v_ = memory.take(values);
  packedV_ = memory.take(packedSize(kChunk, valueSize_));
  decays_ = memory.take(kChunk * width_);
  state_ = memory.take(keySize_ * valueSize_);
  out_ = memory.take(values);
  input_ = memory.take(kChunk);
  if (!gradients) return;
  dOut_ = memory.take(values);
  dScores_ = memory.take(kChunk * kChunk);
  dq_ = memory.take(keys);
  dk_ = memory.take(keys);
  dv_ = memory.take(values);
  sums_ = memory.take(2 * keySize_);
  dGate_ = memory.take(kChunk * width_);
  dInput_ = memory.take(kChunk);
  stateGradient_ = memory.take(keySize_ * valueSize_);
  querySum_ = memory.take(keys);
  keySum_ = memory.take(keys);
}

size_t Chunk::numbers(size_t keySize, size_t valueSize, size_t width, bool gradients) {
  Floats counting(nullptr);
  const Chunk counted(keySize, valueSize, width, gradients, counting);
  return counting.used();
}

void Chunk::place(size_t batch, size_t first, size_t count) {
  batch_ = batch;
  first_ = first;
  rows_ = count;
}

void Chunk::loadQueryRows(const Tensor& q, size_t head, float factor, size_t begin, size_t count) {
  loadScaledTile(q, batch_, first_ + begin, count, head, factor, q_ + begin * keySize_);
}

void Chunk::loadQueries(const Tensor& q, size_t head, float factor) {
  loadQueryRows(q, head, factor, 0, rows_);
}

void Chunk::loadKeys(const Tensor& k, size_t head) {
  loadTile(k, batch_, first_, rows_, head, k_);
}

void Chunk::loadValues(const Tensor& v, const Tensor& inputGate, size_t head) {
  loadTile(v, batch_, first_, rows_, head, v_);
  if (inputGate.data == nullptr) return;
  loadTile(inputGate, batch_, first_, rows_, head, input_);
  for (size_t t = 0; t < rows_; ++t) scale(input_[t], valueSize_, v_ + t * valueSize_);
}

void Chunk::packValues(const Tensor& v, const Tensor& inputGate, size_t head) {
  if (v.type == seqparFloat32 && inputGate.data == nullptr) {
    const auto* const rows = reinterpret_cast<const float*>(
        v.at(static_cast<int64_t>(batch_), static_cast<int64_t>(first_), static_cast<int64_t>(head)));
    // With one token the stride is unused and may have any value.
    return pack(rows_, valueSize_, {rows, static_cast<size_t>(std::max(v.tokenStride, v.dim))}, packedV_);
  }
  loadValues(v, inputGate, head);
  pack(rows_, valueSize_, {v_, valueSize_}, packedV_);
}

void Chunk::loadOutGradients(const Tensor& dOut, size_t head) {
  loadTile(dOut, batch_, first_, rows_, head, dOut_);
}

void Chunk::loadDecayRows(const Decay& decay, size_t head, size_t begin, size_t count) {
  float* const rows = decays_ + begin * width_;
  if (decay.gate.data == nullptr) {
    std::fill_n(rows, count * width_, 1.0f);
  } else if (decay.fixed) {
    loadExponentials(decay.gate, 0, 0, 1, head, rows);
    std::fill_n(rows, count * width_, rows[0]);
  } else {
    loadExponentials(decay.gate, batch_, first_ + begin, count, head, rows);
  }
}

void Chunk::loadDecays(const Decay& decay, size_t head) {
  loadDecayRows(decay, head, 0, rows_);
}

void Chunk::decayKeys() {
  scores_.decayKeys(rows_, k_, decays_);
}

void Chunk::decayQueries() {
  scores_.decayQueries(rows_, q_, decays_);
}

void Chunk::score() {
  scores_.compute(rows_, q_, k_, decays_);
}

void Chunk::loadAndScore(const Tensor& q, const Tensor& k, size_t keyHead, float factor, const Decay& decay,
                         size_t head) {
  scores_.compute(rows_, q_, k_, decays_, [&](size_t begin, size_t count) {
    loadQueryRows(q, keyHead, factor, begin, count);
    loadTile(k, batch_, first_ + begin, count, keyHead, k_ + begin * keySize_);
    loadDecayRows(decay, head, begin, count);
  });
}

void Chunk::decayQueriesAsScored() {
  scores_.decayQueriesAsScored(rows_, q_, decays_);
}

void Chunk::attendWithin(float* out) const {
  multiplyLowerPacked(rows_, valueSize_, {scores_.scores(), kChunk}, {packedV_, rows_}, out, valueSize_);
}

void Chunk::attendState(const float* state, float* out) const {
  multiplyForgetting(rows_, valueSize_, keySize_, {scores_.queries(), keySize_}, {state, valueSize_}, true, out,
                     valueSize_);
}

// NaN or infinity of an operand is in the product, too, which has fewer elements than the operands.
bool Chunk::attendFiniteState(const float* state, float* out) const {
  multiply(rows_, valueSize_, keySize_, {scores_.queries(), keySize_}, {state, valueSize_}, true, out, valueSize_);
  return allFinite(out, rows_ * valueSize_) ||
         (allFinite(scores_.queries(), rows_ * keySize_) && allFinite(state, keySize_ * valueSize_));
}

void Chunk::updateState(const float* from, float* to) const {
  if (from != nullptr) decayState(scores_.total(), width_, keySize_, valueSize_, from, to);
  multiplyPacked(keySize_, valueSize_, rows_, {scores_.keys(), keySize_, true}, {packedV_, rows_}, from != nullptr, to,
                 valueSize_);
}

void Chunk::updateStateGradient(const float* from, float* to) const {
  if (from != nullptr) decayState(scores_.total(), width_, keySize_, valueSize_, from, to);
  multiply(keySize_, valueSize_, rows_, {scores_.queries(), keySize_, true}, {dOut_, valueSize_}, from != nullptr, to,
           valueSize_);
}

void Chunk::gradients(const float* state, const float* stateGradient) {
  multiplyToLower(rows_, valueSize_, {dOut_, valueSize_}, {v_, valueSize_, true}, dScores_, kChunk);
  multiplyLower(rows_, valueSize_, {scores_.scores(), kChunk, true}, {dOut_, valueSize_}, false, dv_, valueSize_);
  multiplyForgetting(rows_, valueSize_, keySize_, {scores_.keys(), keySize_}, {stateGradient, valueSize_}, true, dv_,
                     valueSize_);
  // Gradients with respect to the decayed queries and keys.
  multiply(rows_, keySize_, valueSize_, {dOut_, valueSize_}, {state, valueSize_, true}, false, dq_, keySize_);
  multiply(rows_, keySize_, valueSize_, {v_, valueSize_}, {stateGradient, valueSize_, true}, false, dk_, keySize_);
  std::fill_n(sums_, keySize_, 0.0f);
  addColumnSums(scores_.keys(), dk_, rows_, keySize_, sums_);
  scores_.gradients(rows_, q_, k_, decays_, dScores_, dq_, dk_);
}

// With y the gradient of the state after the chunk, the gradient of log a_t is the sum of q dq - k dk over the tokens
// from t on, plus y times the state after the chunk (2312.06635, section 4.4). On several ranks, y includes the ranks
// after this one: the boundary term that a sum over the rank's own tokens lacks.
const float* Chunk::gateGradients(const float* state, const float* stateGradient) {
  float* const boundary = sums_ + keySize_;
  decayedRowSums(scores_.total(), width_, stateGradient, state, keySize_, valueSize_, boundary);
  add(boundary, keySize_, sums_);
  if (width_ > 1) {
    attn::linear::gateGradients(decays_, q_, dq_, k_, dk_, rows_, keySize_, sums_, dGate_);
    return dGate_;
  }
  float run = 0;
  for (size_t d = 0; d < keySize_; ++d) run += sums_[d];
  for (size_t t = rows_; t-- > 0;) {
    const size_t at = t * keySize_;
    run += dot(q_ + at, dq_ + at, keySize_) - dot(k_ + at, dk_ + at, keySize_);
    if (decays_[t] == 0.0f) run = 0;
    dGate_[t] = run;
  }
  return dGate_;
}

const float* Chunk::inputGradients(const Tensor& v, size_t head) {
  loadTile(v, batch_, first_, rows_, head, out_);
  for (size_t t = 0; t < rows_; ++t) {
    float* const row = dv_ + t * valueSize_;
    dInput_[t] = dot(out_ + t * valueSize_, row, valueSize_);
    scale(input_[t], valueSize_, row);
  }
  return dInput_;
}

}  // namespace seqpar::attn::linear
