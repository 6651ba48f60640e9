// The recurrences over the chunks of a window for 16-bit tensors: Advance for states, Retreat for their gradients.
//
// Work: one CTA per (slice of 32 columns, head, batch entry) of the state, or of the product of the chunks' matrices,
// whose columns start as those of the identity and have no values: columns never mix. Roles: warp w has rows 16 w ...
// 16 w + 15 of the state in registers (fp32), and of values a strip of 16 rows and 16 columns. Smem: stages of records,
// which cp.async loads ahead of the products; the state and the values rounded to 16 bits. Barriers: two
// __syncthreads() per chunk.
#pragma once

#include "kernels/attn/linear/delta/half/tile.h"

namespace seqpar::attn::delta::half {

template <class T>
class Chain {
 protected:
  SEQPAR_DEVICE Chain(const Task& t, int stageBytes, int stages)
      : task_(t), columns_(paddedColumns(t)), stageBytes_(stageBytes), warp_(ptx::uniform(ptx::thread() / 32)) {
    const int ofStates = stateSlices(t);
    const int slices = ofStates + (t.transition != nullptr ? slicesOf(t.dk) : 0);
    int64_t index = ptx::block();
    const int slice = static_cast<int>(index % slices);
    index /= slices;
    head_ = static_cast<int>(index % t.heads);
    batch_ = index / t.heads;
    ofState_ = slice < ofStates;
    column_ = (ofState_ ? slice : slice - ofStates) * kSlice;
    width_ = ofState_ ? t.dv : t.dk;
    rounded_ = reinterpret_cast<uint16_t*>(ptx::sharedMemory() + stages * stageBytes);
    values_ = rounded_ + kStateSlice;
  }

  SEQPAR_DEVICE uint16_t* stage(int n) const {
    return reinterpret_cast<uint16_t*>(ptx::sharedMemory() + n * stageBytes_);
  }
  SEQPAR_DEVICE Record record(int n) const { return recordOf(task_, batch_, head_, n); }
  SEQPAR_DEVICE float* running() const { return ofState_ ? task_.states : task_.transition; }
  SEQPAR_DEVICE int64_t index() const { return batch_ * task_.heads + head_; }
  SEQPAR_DEVICE int64_t sequenceIndex(const Chunk& chunk) const { return chunk.sequence * task_.heads + head_; }

  /// `states`: of all heads, or zeros; `index` of the head.
  SEQPAR_DEVICE void loadState(const float* states, int64_t index) {
    const float* const from = states == nullptr ? nullptr : states + index * task_.dk * width_;
    const auto at = [&](int c, int n) {
      return from != nullptr && c < task_.dk && n < width_ ? from[int64_t{c} * width_ + n] : 0;
    };
    eachPair(state_, warp_ * kBlock, column_, [&](int c, int n, float& x, float& y) {
      x = at(c, n);
      y = at(c, n + 1);
    });
    roundState();
  }
  SEQPAR_DEVICE void storeState(float* states, int64_t index) {
    float* const to = states + index * task_.dk * width_;
    eachPair(state_, warp_ * kBlock, column_, [&](int c, int n, float x, float y) {
      if (c < task_.dk && n < width_) to[int64_t{c} * width_ + n] = x;
      if (c < task_.dk && n + 1 < width_) to[int64_t{c} * width_ + n + 1] = y;
    });
  }
  SEQPAR_DEVICE void roundState() {
    eachPair(state_, warp_ * kBlock, 0,
             [&](int c, int n, float x, float y) { storePair<T>(rounded_ + c * kSliceRow + n, x, y); });
  }
  /// state = total * state + c
  SEQPAR_DEVICE void update(const float* total, float (&c)[4][4]) {
    const int row = warp_ * kBlock + ptx::thread() % 32 / 4;
    const float upper = total[row], lower = total[row + 8];
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) state_[n][e] = forgetting(e < 2 ? upper : lower, state_[n][e]) + c[n][e];
    }
  }
  /// The warp's tile of a product with the state, [kRows][kSlice] over channels.
  SEQPAR_DEVICE void timesState(float (&c)[2][4], const uint16_t* rows) const {
    multiply<T>(c, InRows{rows, kKeyStride}, warp_ % 4 * kBlock, AsRows{rounded_, kSliceRow}, warp_ / 4 * 16, 0, kKeys);
  }
  SEQPAR_DEVICE void keep(uint16_t* to, const uint16_t* from, int rows) const {
    if (to != nullptr && ofState_) copyRows(to + column_, columns_, from, kSliceRow, rows, kSlice);
  }
  /// A tile [kRows][kSlice] of a record, or zeros for the product of matrices.
  SEQPAR_DEVICE void startSlice(uint16_t* to, const uint16_t* from) const {
    const int t = ptx::thread() / 4, c = ptx::thread() % 4 * 8;
    ptx::cpAsync16(to + t * kSliceRow + c, from + t * columns_ + (ofState_ ? column_ : 0) + c, ofState_);
  }
  SEQPAR_DEVICE static void startTotal(uint16_t* to, const float* from) {
    const int i = ptx::thread();
    if (i < kKeys / 4) ptx::cpAsync16(to + 8 * i, from + 4 * i, true);
  }

  const Task& task_;
  const int columns_, stageBytes_, warp_;
  int head_, column_, width_;
  int64_t batch_;
  bool ofState_;
  uint16_t *rounded_, *values_;  ///< [kKeys][kSliceRow], [kRows][kSliceRow]
  float state_[4][4];
};

template <class T>
class Advance : Chain<T> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Advance(task).window(); }

 private:
  using Base = Chain<T>;
  using Base::task_, Base::state_, Base::rounded_, Base::values_, Base::warp_;

  SEQPAR_DEVICE explicit Advance(const Task& task) : Base(task, kAdvanceStage, kAdvanceStages) {}

  SEQPAR_DEVICE void start(int n) const {
    if (n < task_.count) {
      const Record r = this->record(n);
      uint16_t* const to = this->stage(n % kAdvanceStages);
      startRows(to, kKeyStride, r.w, kKeys, kRows, kKeys);
      startRows(to + kKeyTile, kKeyStride, r.kOut, kKeys, kRows, kKeys);
      this->startSlice(to + 2 * kKeyTile, r.written);
      this->startTotal(to + 2 * kKeyTile + kSliceTile, r.total);
    }
    ptx::cpAsyncCommitGroup();
  }

  SEQPAR_DEVICE void window() {
    for (int n = 0; n + 1 < kAdvanceStages; ++n) start(n);
    this->loadState(this->running(), this->index());
    if (this->ofState_ && task_.checkpoint != nullptr) this->storeState(task_.checkpoint, this->index());
    for (int n = 0; n < task_.count; ++n) step(n);
    this->storeState(this->running(), this->index());
    ptx::cpAsyncWaitGroup<0>();
  }

  SEQPAR_DEVICE void step(int n) {
    const Chunk& chunk = task_.chunks[task_.first + n];
    const bool keeps = task_.keepsStates || task_.writesOut;
    if (chunk.begins != 0) {
      ptx::syncthreads();  // the last step's copies of `rounded_`
      this->loadState(this->ofState_ ? task_.initial : nullptr, this->sequenceIndex(chunk));
    }
    ptx::cpAsyncWaitGroup<kAdvanceStages - 2>();
    ptx::syncthreads();
    start(n + kAdvanceStages - 1);
    const Record r = this->record(n);
    const uint16_t* const from = this->stage(n % kAdvanceStages);
    const uint16_t* const values = from + 2 * kKeyTile;
    float c[2][4];
    this->timesState(c, from);
    eachPair(c, warp_ % 4 * kBlock, warp_ / 4 * 16, [&](int t, int v, float x, float y) {
      const uint32_t u = *reinterpret_cast<const uint32_t*>(values + t * kSliceRow + v);
      storePair<T>(values_ + t * kSliceRow + v, ptx::lowOf<T>(u) - x, ptx::highOf<T>(u) - y);
    });
    if (keeps) this->keep(r.state, rounded_, kKeys);
    ptx::syncthreads();
    if (keeps) this->keep(r.written, values_, kRows);
    float added[4][4];
    multiply<T>(added, AsRows{from + kKeyTile, kKeyStride}, warp_ * kBlock, AsRows{values_, kSliceRow}, 0, 0, kRows);
    this->update(reinterpret_cast<const float*>(values + kSliceTile), added);
    this->roundState();
  }
};

/// With Y the gradient of the state after the chunk, dO that of the outputs:
///     dD = scores^T dO + kOut Y        Y = total Y + qIn^T dO - W^T dD
template <class T>
class Retreat : Chain<T> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Retreat(task).window(); }

 private:
  using Base = Chain<T>;
  using Base::task_, Base::state_, Base::rounded_, Base::values_, Base::warp_;

  SEQPAR_DEVICE explicit Retreat(const Task& task) : Base(task, kRetreatStage, kRetreatStages) {}

  SEQPAR_DEVICE void start(int n) const {
    if (n >= 0) {
      const Record r = this->record(n);
      uint16_t* const to = this->stage(n % kRetreatStages);
      startRows(to, kKeyStride, r.w, kKeys, kRows, kKeys);
      startRows(to + kKeyTile, kKeyStride, r.kOut, kKeys, kRows, kKeys);
      startRows(to + 2 * kKeyTile, kKeyStride, r.qIn, kKeys, kRows, kKeys);
      this->startSlice(to + 3 * kKeyTile, r.dWritten);
      this->startSlice(to + 3 * kKeyTile + kSliceTile, r.dOut);
      this->startTotal(to + 3 * kKeyTile + 2 * kSliceTile, r.total);
    }
    ptx::cpAsyncCommitGroup();
  }

  SEQPAR_DEVICE void window() {
    for (int n = 0; n + 1 < kRetreatStages; ++n) start(task_.count - 1 - n);
    this->loadState(this->running(), this->index());
    for (int n = task_.count; n-- > 0;) step(n);
    this->storeState(this->running(), this->index());
    ptx::cpAsyncWaitGroup<0>();
  }

  SEQPAR_DEVICE void step(int n) {
    const Chunk& chunk = task_.chunks[task_.first + n];
    ptx::cpAsyncWaitGroup<kRetreatStages - 2>();
    ptx::syncthreads();
    start(n - kRetreatStages + 1);
    const Record r = this->record(n);
    const uint16_t* const from = this->stage(n % kRetreatStages);
    const uint16_t *const dWritten = from + 3 * kKeyTile, *const dOut = dWritten + kSliceTile;
    float c[2][4];
    this->timesState(c, from + kKeyTile);
    eachPair(c, warp_ % 4 * kBlock, warp_ / 4 * 16, [&](int t, int v, float x, float y) {
      const uint32_t z = *reinterpret_cast<const uint32_t*>(dWritten + t * kSliceRow + v);
      storePair<T>(values_ + t * kSliceRow + v, ptx::lowOf<T>(z) + x, ptx::highOf<T>(z) + y);
    });
    if (task_.keepsStates) this->keep(r.dState, rounded_, kKeys);
    ptx::syncthreads();
    if (task_.keepsStates) this->keep(r.dWritten, values_, kRows);
    float added[4][4], taken[4][4];
    multiply<T>(added, AsRows{from + 2 * kKeyTile, kKeyStride}, warp_ * kBlock, AsRows{dOut, kSliceRow}, 0, 0, kRows);
    multiply<T>(taken, AsRows{from, kKeyStride}, warp_ * kBlock, AsRows{values_, kSliceRow}, 0, 0, kRows);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) added[i][e] -= taken[i][e];
    }
    this->update(reinterpret_cast<const float*>(dOut + kSliceTile), added);
    if (chunk.begins != 0) {
      if (this->ofState_ && task_.dInitial != nullptr) this->storeState(task_.dInitial, this->sequenceIndex(chunk));
      this->loadState(nullptr, 0);
    } else {
      this->roundState();
    }
  }
};

/// out = qIn S + scores D.
template <class T>
class Outputs {
 public:
  /// Work: one CTA per (block of 64 columns, chunk, head, batch entry). Roles: warps, 16 rows and 32 columns each.
  SEQPAR_DEVICE static void run(const Task& task) {
    const int blocks = paddedColumns(task) / kColumns, columns = paddedColumns(task);
    int64_t index = ptx::block();
    const int first = static_cast<int>(index % blocks) * kColumns;
    index /= blocks;
    const int n = static_cast<int>(index % task.count);
    index /= task.count;
    const int head = static_cast<int>(index % task.heads);
    const int64_t batch = index / task.heads;
    const Chunk chunk = task.chunks[task.first + n];
    const Record r = recordOf(task, batch, head, n);
    uint16_t* const queries = reinterpret_cast<uint16_t*>(ptx::sharedMemory());
    uint16_t* const scores = queries + kKeyTile;
    uint16_t* const state = scores + kSquareTile;
    uint16_t* const values = state + kStateTile;
    startRows(queries, kKeyStride, r.qIn, kKeys, kRows, kKeys);
    startRows(state, kColumnStride, r.state + first, columns, kKeys, kColumns);
    startRows(scores, kSquareStride, r.scores, kRows, kRows, kRows);
    startRows(values, kColumnStride, r.written + first, columns, kRows, kColumns);
    ptx::cpAsyncCommitGroup();
    ptx::cpAsyncWaitGroup<0>();
    ptx::syncthreads();
    const int warp = ptx::uniform(ptx::thread() / 32), row = warp % 4 * kBlock, column = warp / 4 * 32;
    float c[4][4];
    multiply<T>(c, InRows{queries, kKeyStride}, row, AsRows{state, kColumnStride}, column, 0, kKeys);
    add<T>(c, InRows{scores, kSquareStride}, row, AsRows{values, kColumnStride}, column, 0, row + kBlock);
    ptx::syncthreads();
    eachPair(c, row, column,
             [&](int t, int v, float x, float y) { storePair<T>(values + t * kColumnStride + v, x, y); });
    ptx::syncthreads();
    storeTensor(task.out, batch, chunk, head, first, kColumns, task.dv, values, kColumnStride);
  }
};

}  // namespace seqpar::attn::delta::half
