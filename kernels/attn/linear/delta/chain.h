// The recurrences over the chunks of a window: Advance for states and outputs, Retreat for gradients of states.
//
// Work      a CTA has one (slice of 32 columns, head, batch entry) of the state, or of the product of the chunks'
//           matrices, whose columns start as those of the identity and have no values: columns never mix
// Roles     all warps alike, by tiles of products
// Tiles     chunks of 64 tokens; products in tiles of 16 x 16 (product.h)
// Smem      sharedNumbers(): the slice of the state, [dk][40], and two slices of tokens, [64][40]
// Barriers  __syncthreads() between products
// Overlap   none; operands of products come from the L2 cache, where Prepare has just written them
#pragma once

#include "kernels/attn/linear/delta/product.h"

namespace seqpar::attn::delta {

/// A CTA's slice.
class Chain {
 protected:
  SEQPAR_DEVICE explicit Chain(const Task& t)
      : task_(t), dk_(padded(t.dk)), dv_(padded(t.dv)), exact_(t.type == seqparFloat32) {
    const int ofStates = t.states != nullptr ? slicesOf(t.dv) : 0;
    const int slices = ofStates + (t.transition != nullptr ? slicesOf(t.dk) : 0);
    int64_t index = ptx::block();
    const int slice = static_cast<int>(index % slices);
    index /= slices;
    head_ = static_cast<int>(index % t.heads);
    batch_ = index / t.heads;
    ofState_ = slice < ofStates;
    column_ = (ofState_ ? slice : slice - ofStates) * kSlice;
    width_ = ofState_ ? t.dv : t.dk;
    state_ = reinterpret_cast<float*>(ptx::sharedMemory());
    one_ = state_ + dk_ * kSliceStride;
    two_ = one_ + kRows * kSliceStride;
  }

  SEQPAR_DEVICE bool inside(int column) const { return column_ + column < width_; }
  /// Whether records have this column.
  SEQPAR_DEVICE bool kept(int column) const { return ofState_ && column_ + column < dv_; }
  SEQPAR_DEVICE Matrix slice(const float* memory, const float* factor = nullptr) const {
    return {memory, kSliceStride, 1, factor};
  }
  /// Calls each(row, column) for a slice's elements.
  template <class Each>
  SEQPAR_DEVICE static void eachOf(int rows, const Each& each) {
    for (int i = ptx::thread(); i < rows * kSlice; i += kThreads) each(i / kSlice, i % kSlice);
  }
  /// `states`: of all heads, or zeros; `index` of the head.
  SEQPAR_DEVICE void loadState(const float* states, int64_t index) {
    const float* const from = states == nullptr ? nullptr : states + index * task_.dk * width_ + column_;
    eachOf(dk_, [&](int c, int n) {
      state_[c * kSliceStride + n] = from != nullptr && c < task_.dk && inside(n) ? from[int64_t{c} * width_ + n] : 0;
    });
  }
  SEQPAR_DEVICE void storeState(float* states, int64_t index) const {
    float* const to = states + index * task_.dk * width_ + column_;
    eachOf(task_.dk, [&](int c, int n) {
      if (inside(n)) to[int64_t{c} * width_ + n] = state_[c * kSliceStride + n];
    });
  }
  SEQPAR_DEVICE const float* before() const { return ofState_ ? task_.before : task_.transition; }
  SEQPAR_DEVICE float* after() const { return ofState_ ? task_.states : task_.transition; }
  SEQPAR_DEVICE int64_t index() const { return batch_ * task_.heads + head_; }
  SEQPAR_DEVICE int64_t sequenceIndex(const Chunk& chunk) const { return chunk.sequence * task_.heads + head_; }
  /// The slice of a record's state or its gradient.
  SEQPAR_DEVICE void keepState(float* to) const {
    eachOf(dk_, [&](int c, int n) {
      if (kept(n)) to[c * dv_ + column_ + n] = state_[c * kSliceStride + n];
    });
  }

  const Task& task_;
  const int dk_, dv_;
  const bool exact_;
  int head_, column_, width_;
  int64_t batch_;
  bool ofState_;
  float *state_, *one_, *two_;
};

class Advance : Chain {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Advance(task).window(); }

 private:
  SEQPAR_DEVICE explicit Advance(const Task& task) : Chain(task) {}

  SEQPAR_DEVICE void window() {
    loadState(before(), index());
    ptx::syncthreads();
    for (int n = 0; n < task_.count; ++n) step(task_.chunks[task_.first + n], recordAt(task_, batch_, head_, n));
    storeState(after(), index());
  }

  SEQPAR_DEVICE void step(const Chunk& chunk, const Record& r) {
    if (chunk.begins != 0) {
      loadState(ofState_ ? task_.initial : nullptr, sequenceIndex(chunk));
      ptx::syncthreads();
    }
    if (task_.keepsStates) keepState(r.state);
    multiply({rowsOf(r.kIn, dk_), slice(state_), dk_}, kRows, kSlice, exact_, [&](int t, int n, float value) {
      const float residual = valueOf(chunk, t, n) - value;
      if (task_.keepsStates && kept(n)) r.residual[t * dv_ + column_ + n] = residual;
      one_[t * kSliceStride + n] = r.beta[t] * residual;
    });
    ptx::syncthreads();
    multiply({rowsOf(r.inverse, kRows), slice(one_), kRows}, kRows, kSlice, exact_, [&](int t, int n, float value) {
      if (task_.keepsStates && kept(n)) r.written[t * dv_ + column_ + n] = value;
      two_[t * kSliceStride + n] = value;
    });
    ptx::syncthreads();
    if (task_.writesOut) {
      const Factors products[] = {{rowsOf(r.qIn, dk_), slice(state_), dk_},
                                  {rowsOf(r.scores, kRows), slice(two_), kRows}};
      multiply(products, kRows, kSlice, exact_, [&](int t, int n, float value) {
        if (t >= chunk.rows || !inside(n)) return;
        const int64_t row = rowOf(task_.out, batch_, chunk.first + t, head_);
        storeNumber(task_.out.data, task_.type, row + column_ + n, value);
      });
      ptx::syncthreads();
    }
    multiply({transposeOf(r.kOut, dk_), slice(two_), kRows}, dk_, kSlice, exact_, [&](int c, int n, float value) {
      float& number = state_[c * kSliceStride + n];
      number = forgetting(r.total[c], number) + value;
    });
    ptx::syncthreads();
  }

  SEQPAR_DEVICE float valueOf(const Chunk& chunk, int t, int n) const {
    if (!ofState_ || t >= chunk.rows || !inside(n)) return 0;
    return loadNumber(task_.v.data, task_.type, rowOf(task_.v, batch_, chunk.first + t, head_) + column_ + n);
  }
};

class Retreat : Chain {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Retreat(task).window(); }

 private:
  SEQPAR_DEVICE explicit Retreat(const Task& task) : Chain(task) {}

  SEQPAR_DEVICE void window() {
    loadState(before(), index());
    ptx::syncthreads();
    for (int n = task_.count; n-- > 0;) step(task_.chunks[task_.first + n], recordAt(task_, batch_, head_, n));
    storeState(after(), index());
  }

  // With Y the gradient of the state after the chunk, dO that of the outputs:
  //     dX = inverse^T (scores^T dO + kOut Y)        Y = total Y + qIn^T dO - kIn^T (beta dX)
  SEQPAR_DEVICE void step(const Chunk& chunk, const Record& r) {
    if (task_.keepsStates) keepState(r.dState);
    eachOf(kRows, [&](int t, int n) { one_[t * kSliceStride + n] = kept(n) ? r.dOut[t * dv_ + column_ + n] : 0; });
    ptx::syncthreads();
    const Factors ofWritten[] = {{transposeOf(r.scores, kRows), slice(one_), kRows},
                                 {rowsOf(r.kOut, dk_), slice(state_), dk_}};
    multiply(ofWritten, kRows, kSlice, exact_, [&](int t, int n, float value) { two_[t * kSliceStride + n] = value; });
    ptx::syncthreads();
    // The product with dO before its slice is overwritten.
    multiply({transposeOf(r.qIn, dk_), slice(one_), kRows}, dk_, kSlice, exact_, [&](int c, int n, float value) {
      float& number = state_[c * kSliceStride + n];
      number = forgetting(r.total[c], number) + value;
    });
    ptx::syncthreads();
    multiply({transposeOf(r.inverse, kRows), slice(two_), kRows}, kRows, kSlice, exact_,
             [&](int t, int n, float value) {
               if (task_.keepsStates && kept(n)) r.dX[t * dv_ + column_ + n] = value;
               one_[t * kSliceStride + n] = r.beta[t] * value;
             });
    ptx::syncthreads();
    multiply({transposeOf(r.kIn, dk_), slice(one_), kRows}, dk_, kSlice, exact_,
             [&](int c, int n, float value) { state_[c * kSliceStride + n] -= value; });
    ptx::syncthreads();
    if (chunk.begins == 0) return;
    if (ofState_ && task_.dInitial != nullptr) storeState(task_.dInitial, sequenceIndex(chunk));
    ptx::syncthreads();
    loadState(nullptr, 0);
    ptx::syncthreads();
  }
};

}  // namespace seqpar::attn::delta
