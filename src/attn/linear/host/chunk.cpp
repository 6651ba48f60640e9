#include "attn/linear/host/chunk.h"

#include <algorithm>

#include "attn/linear/host/tile.h"
#include "attn/linear/host/vector.h"
#include "base/sgemm.h"

namespace seqpar::attn::linear {

size_t Chunk::carve(float* memory, bool gradients) {
  size_t used = 0;
  const auto take = [&](float*& piece, size_t numbers) {
    constexpr size_t kAlign = 16;  // fp32 values per cache line
    piece = memory == nullptr ? nullptr : memory + used;
    used += (numbers + kAlign - 1) / kAlign * kAlign;
  };
  const size_t keys = kChunk * keySize_, values = kChunk * valueSize_;
  const bool byChannel = width_ > 1;
  take(q_, keys);
  take(k_, keys);
  take(v_, values);
  take(decays_, kChunk * width_);
  take(qd_, keys);
  take(kd_, keys);
  take(scores_, kChunk * kChunk);
  take(decayMatrix_, byChannel ? 0 : kChunk * kChunk);
  take(total_, keySize_);
  take(row_, keySize_);
  take(products_, byChannel ? kLevels * kLeaves * keySize_ : 0);
  take(state_, keySize_ * valueSize_);
  take(out_, values);
  if (!gradients) return used;
  take(dOut_, values);
  take(levels_, byChannel ? kLevels * 2 * keys : 0);
  take(dScores_, kChunk * kChunk);
  take(dq_, keys);
  take(dk_, keys);
  take(dv_, values);
  take(sums_, 2 * keySize_);
  take(dGate_, kChunk * width_);
  take(stateGradient_, keySize_ * valueSize_);
  take(querySum_, keys);
  take(keySum_, keys);
  return used;
}

Chunk::Chunk(size_t keySize, size_t valueSize, size_t width, bool gradients, float* memory)
    : keySize_(keySize), valueSize_(valueSize), width_(width) {
  carve(memory, gradients);
}

size_t Chunk::numbers(size_t keySize, size_t valueSize, size_t width, bool gradients) {
  Chunk counted(keySize, valueSize, width, gradients, nullptr);
  return counted.carve(nullptr, gradients);
}

void Chunk::place(size_t batch, size_t first, size_t count) {
  batch_ = batch;
  first_ = first;
  rows_ = count;
}

void Chunk::loadQueries(const Tensor& q, size_t head, float factor) {
  loadTile(q, batch_, first_, rows_, head, q_);
  scale(factor, rows_ * keySize_, q_);
}

void Chunk::loadKeys(const Tensor& k, size_t head) {
  loadTile(k, batch_, first_, rows_, head, k_);
}

void Chunk::loadValues(const Tensor& v, size_t head) {
  loadTile(v, batch_, first_, rows_, head, v_);
}

void Chunk::loadOutGradients(const Tensor& dOut, size_t head) {
  loadTile(dOut, batch_, first_, rows_, head, dOut_);
}

void Chunk::loadDecays(const Decay& decay, size_t head) {
  const size_t count = rows_ * width_;
  if (decay.gate.data == nullptr) {
    std::fill_n(decays_, count, 1.0f);
  } else if (decay.fixed) {
    loadTile(decay.gate, 0, 0, 1, head, decays_);
    exponentiate(decays_, 1, decays_);
    std::fill_n(decays_, count, decays_[0]);
  } else {
    loadTile(decay.gate, batch_, first_, rows_, head, decays_);
    exponentiate(decays_, count, decays_);
  }
}

void Chunk::decayKeys() {
  decayToEnd(decays_, rows_, width_, keySize_, k_, kd_, total_);
}

void Chunk::decayQueries() {
  decayFromStart(decays_, rows_, width_, keySize_, q_, qd_, total_);
}

void Chunk::score() {
  if (width_ > 1) {
    scoreByChannel();
  } else {
    scoreByToken();
  }
}

// Products of decays in score()'s order, so that the results are bitwise equal.
void Chunk::decayQueriesAsScored() {
  if (width_ == 1) return decayQueries();
  const size_t dk = keySize_;
  for (size_t begin = 0; begin < rows_; begin += kLeaf) {
    const size_t at = begin * dk;
    decayFromStart(decays_ + at, std::min(kLeaf, rows_ - begin), dk, dk, q_ + at, qd_ + at, product(0, begin));
  }
  size_t size = kLeaf;
  for (size_t level = 0; level < kLevels; ++level, size *= 2) {
    for (size_t even = 0; even < rows_; even += 2 * size) mergeQueries(level, even, size);
  }
}

/// Merges the odd block of a pair, at even + size, into the even one: its queries, and the decay over both.
void Chunk::mergeQueries(size_t level, size_t even, size_t size) {
  const size_t dk = keySize_, odd = even + size;
  float* const both = level + 1 < kLevels ? product(level + 1, even) : total_;
  std::copy_n(product(level, even), dk, both);
  if (odd >= rows_) return;
  multiplyEach(product(level, even), std::min(size, rows_ - odd), dk, qd_ + odd * dk);
  multiplyEach(product(level, odd), 1, dk, both);
}

void Chunk::scoreByToken() {
  decayMatrix(decays_, rows_, decayMatrix_, kChunk);
  multiply(rows_, rows_, keySize_, {q_, keySize_}, {k_, keySize_, true}, false, scores_, kChunk);
  multiplyRows(decayMatrix_, rows_, rows_, kChunk, scores_);
  decayKeys();
  decayQueries();
}

void Chunk::scoreByChannel() {
  const size_t dk = keySize_;
  std::fill_n(scores_, rows_ * kChunk, 0.0f);
  for (size_t begin = 0; begin < rows_; begin += kLeaf) {
    const size_t count = std::min(kLeaf, rows_ - begin), at = begin * dk;
    leafScores(q_ + at, k_ + at, decays_ + at, count, dk, scores_ + begin * kChunk + begin, kChunk, row_);
    decayFromStart(decays_ + at, count, dk, dk, q_ + at, qd_ + at, product(0, begin));
    decayToEnd(decays_ + at, count, dk, dk, k_ + at, kd_ + at, row_);
  }
  size_t size = kLeaf;
  for (size_t level = 0; level < kLevels; ++level, size *= 2) {
    for (size_t even = 0; even < rows_; even += 2 * size) {
      const size_t odd = even + size;
      if (odd < rows_) {
        const size_t count = std::min(size, rows_ - odd);
        float *const queries = qd_ + odd * dk, *const keys = kd_ + even * dk;
        multiply(count, size, dk, {queries, dk}, {keys, dk, true}, false, scores_ + odd * kChunk + even, kChunk);
        if (levels_ != nullptr) {
          std::copy_n(queries, count * dk, levelQueries(level) + odd * dk);
          std::copy_n(keys, size * dk, levelKeys(level) + even * dk);
        }
        multiplyEach(product(level, odd), size, dk, keys);
      }
      mergeQueries(level, even, size);
    }
  }
}

void Chunk::attendWithin(float* out) const {
  multiply(rows_, valueSize_, rows_, {scores_, kChunk}, {v_, valueSize_}, false, out, valueSize_);
}

void Chunk::attendState(const float* state, float* out) const {
  multiplyForgetting(rows_, valueSize_, keySize_, qd_, state, true, out);
}

void Chunk::updateState(const float* from, float* to) const {
  if (from != nullptr) decayState(total_, width_, keySize_, valueSize_, from, to);
  multiply(keySize_, valueSize_, rows_, {kd_, keySize_, true}, {v_, valueSize_}, from != nullptr, to, valueSize_);
}

void Chunk::updateStateGradient(const float* from, float* to) const {
  if (from != nullptr) decayState(total_, width_, keySize_, valueSize_, from, to);
  multiply(keySize_, valueSize_, rows_, {qd_, keySize_, true}, {dOut_, valueSize_}, from != nullptr, to, valueSize_);
}

void Chunk::gradients(const float* state, const float* stateGradient) {
  multiply(rows_, rows_, valueSize_, {dOut_, valueSize_}, {v_, valueSize_, true}, false, dScores_, kChunk);
  multiply(rows_, valueSize_, rows_, {scores_, kChunk, true}, {dOut_, valueSize_}, false, dv_, valueSize_);
  multiplyForgetting(rows_, valueSize_, keySize_, kd_, stateGradient, true, dv_);
  // Gradients with respect to the decayed queries and keys.
  multiply(rows_, keySize_, valueSize_, {dOut_, valueSize_}, {state, valueSize_, true}, false, dq_, keySize_);
  multiply(rows_, keySize_, valueSize_, {v_, valueSize_}, {stateGradient, valueSize_, true}, false, dk_, keySize_);
  std::fill_n(sums_, keySize_, 0.0f);
  addColumnSums(kd_, dk_, rows_, keySize_, sums_);
  if (width_ > 1) {
    gradientsByChannel();
  } else {
    gradientsByToken();
  }
}

void Chunk::gradientsByToken() {
  const size_t dk = keySize_;
  multiplyRows(decayMatrix_, rows_, rows_, kChunk, dScores_);
  float product = 1;
  for (size_t t = 0; t < rows_; ++t) {
    product *= decays_[t];
    forgetRow(product, dk, dq_ + t * dk);
  }
  product = 1;
  for (size_t t = rows_; t-- > 0;) {
    forgetRow(product, dk, dk_ + t * dk);
    product *= decays_[t];
  }
  multiply(rows_, dk, rows_, {dScores_, kChunk}, {k_, dk}, true, dq_, dk);
  multiply(rows_, dk, rows_, {dScores_, kChunk, true}, {q_, dk}, true, dk_, dk);
}

// From the root of the tree to its leaves: each pair of blocks propagates the gradients of its decayed queries and
// keys.
void Chunk::gradientsByChannel() {
  const size_t dk = keySize_;
  size_t size = kChunk / 2;
  for (size_t level = kLevels; level-- > 0; size /= 2) {
    for (size_t even = 0; even + size < rows_; even += 2 * size) {
      const size_t odd = even + size, count = std::min(size, rows_ - odd);
      const Factor weights{dScores_ + odd * kChunk + even, kChunk};
      forgetRows(product(level, even), count, dk, dq_ + odd * dk);
      multiply(count, dk, size, weights, {levelKeys(level) + even * dk, dk}, true, dq_ + odd * dk, dk);
      forgetRows(product(level, odd), size, dk, dk_ + even * dk);
      multiply(size, dk, count, {weights.data, kChunk, true}, {levelQueries(level) + odd * dk, dk}, true,
               dk_ + even * dk, dk);
    }
  }
  for (size_t begin = 0; begin < rows_; begin += kLeaf) {
    const size_t at = begin * dk;
    leafGradients(q_ + at, k_ + at, decays_ + at, dScores_ + begin * kChunk + begin, kChunk,
                  std::min(kLeaf, rows_ - begin), dk, dq_ + at, dk_ + at, row_);
  }
}

// With y the gradient of the state after the chunk, the gradient of log a_t is the sum of q dq - k dk over the tokens
// from t on, plus y times the state after the chunk (2312.06635, section 4.4). On several ranks, y includes the ranks
// after this one: the boundary term that a sum over the rank's own tokens lacks.
const float* Chunk::gateGradients(const float* state, const float* stateGradient) {
  float* const boundary = sums_ + keySize_;
  decayedRowSums(total_, width_, stateGradient, state, keySize_, valueSize_, boundary);
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

}  // namespace seqpar::attn::linear
