// Chains of 16-bit tensors on sm_90a that read rows of keys, queries and values as they are (Task::readsRows): the
// common part of AdvanceRowsSm90 and RetreatRowsSm90. Factors of tokens (RowFactor) scale columns of accumulators.
//
// Work, Tiles   as chain_sm90.h; with Task::segments, a CTA has a slice of one of the segments
// Roles     a warpgroup, the chain, has the state; a warp, the loader, loads stages, two copy to memory what the chain
//           shares. Each thread can have 255 registers
// Smem      ChainSm90Memory: three stages of keys, queries, values or gradients of outputs, the inverse, scores and
//           factors; the rounded state and values; outputs
// Barriers  mbarriers: `full` of a stage by the loader and its copies; `empty` by each warp of the chain; `shared` by
//           each warp of the chain when its rows of the rounded state and values are in shared memory; `kept` by each
//           copier when it has read them. Named: ChainSm90Barrier
// Overlap   loads of two chunks are in flight
// Infinite  a factor of 0 must discard an infinite operand. If an operand is not finite, the chain leaves the loop over
//           finite chunks, which is short enough for the instruction cache, and computes the chunk by scalar sums
#pragma once

#include "kernels/attn/linear/delta/half/chain_sm90.h"
#include "kernels/attn/linear/delta/half/rows_task_sm90.h"

namespace seqpar::attn::delta::half {

struct RowsStage {
  KeyPanels<kRows> keys, queries;
  SquareRows inverse, values, scores;  ///< values: rows of v or dOut
  Floats factors;
};

template <class T>
class ChainRowsSm90 : protected ChainSm90<T, ChainSm90Memory::kCopiers> {
 protected:
  static constexpr int kLoader = 4;  ///< warp
  using Base = ChainSm90<T, ChainSm90Memory::kCopiers>;
  using Base::lane_;
  using Base::ofState_;
  using Base::row_;
  using Base::state_;
  using Base::task_;
  using KeyOperand = uint32_t[kKeys / kBlock][4];
  using Operand = uint32_t[kRows / kBlock][4];
  using Accumulator = float[kRows / 8][4];

  /// stage(i) of the chain, with descriptors in uniform registers.
  SEQPAR_DEVICE static RowsStage uniformStage(int i) {
    return stageAt(ptx::uniform(i % Base::Memory::kStages * Base::Memory::kStage));
  }

  /// Of which the CTA has one: the chains of the window, or of a segment.
  struct Chains {
    int index, ofStates, ofTransitions;                    ///< slices
    int first = 0, count = 0;                              ///< of the window's chunks
    bool isMap = false;                                    ///< Segment::transition
    const float *states = nullptr, *transition = nullptr;  ///< before them; NULL: zeros, the identity
    float *statesAfter = nullptr, *transitionAfter = nullptr;
  };
  SEQPAR_DEVICE static Chains chainsOf(const Task& t) {
    const int block = ptx::block();
    if (t.segmentCount == 0) {
      return {
          block,    slicesOf(t, kColumns), transitionSlicesOf(t, kColumns), 0, t.count, false, t.before, t.transition,
          t.states, t.transition};
    }
    int number = 0, index = block;
    for (; number + 1 < t.segmentCount; ++number) {
      const auto ctas = static_cast<int>(ctasOf(t, t.segments[number]));
      if (index < ctas) break;
      index -= ctas;
    }
    const Segment& s = t.segments[number];
    return {
        index,   stateSlices(t), transitionSlices(t, s), s.first, s.count, s.transition != nullptr, s.before, nullptr,
        s.after, s.transition};
  }

  SEQPAR_DEVICE explicit ChainRowsSm90(const RowsTask& task) : ChainRowsSm90(task, chainsOf(task)) {}
  SEQPAR_DEVICE ChainRowsSm90(const RowsTask& task, const Chains& chains)
      : Base(task, chains.index, chains.ofStates, chains.ofTransitions),
        rows_(task),
        first_(chains.first),
        count_(chains.count),
        isMap_(chains.isMap),
        before_(this->ofState_ ? chains.states : chains.transition),
        after_(this->ofState_ ? chains.statesAfter : chains.transitionAfter) {}

  SEQPAR_DEVICE bool keeps() const { return Base::keeps() && !isMap_; }
  SEQPAR_DEVICE Record record(int n) const { return Base::record(first_ + n); }
  SEQPAR_DEVICE const Chunk& chunk(int n) const { return Base::chunk(first_ + n); }
  SEQPAR_DEVICE void loadFirst() {
    if (task_.segmentCount > 0) ptx::griddepcontrolWait();
    if (ofState_ || before_ != nullptr) return this->loadState(before_, this->index());
    this->eachElement([&](int c, int v, float& x) { x = c == v && c < task_.dk ? 1 : 0; });
  }
  SEQPAR_DEVICE void storeLast() {
    if (after_ != nullptr) this->storeState(after_, this->index());
  }

  SEQPAR_DEVICE static RowsStage stage(int i) { return stageAt(i % Base::Memory::kStages * Base::Memory::kStage); }
  SEQPAR_DEVICE static RowsStage stageAt(int at) {
    const int squares = at + 2 * kKeyBytes;
    return {{at},
            {at + kKeyBytes},
            {squares},
            {squares + kSquareBytes},
            {squares + 2 * kSquareBytes},
            {squares + 3 * kSquareBytes}};
  }
  SEQPAR_DEVICE static uint32_t kept() {
    return ptx::sharedAddress(ptx::sharedMemory()) + static_cast<uint32_t>(Base::Memory::kKept);
  }
  SEQPAR_DEVICE void placeBarriers() const {
    if (ptx::thread() == warpgroup::kThreads) {
      for (int i = 0; i < Base::Memory::kStages; ++i) {
        ptx::mbarrierInit(this->full(i), 1);
        ptx::mbarrierInit(this->empty(i), Base::kChainWarps);
        ptx::mbarrierInit(this->shared(i), Base::kChainWarps);
      }
      ptx::mbarrierInit(kept(), 1);
      ptx::fenceMbarrierInit();
    }
    ptx::syncthreads();
  }

  // The loader, a warp.
  SEQPAR_DEVICE bool isLoader() const { return this->warp_ == kLoader; }
  SEQPAR_DEVICE static bool isFirstLane() { return threadAgain() % 32 == 0; }
  /// Loads chunk `number`, of running number i: keys, `columns` with their map, and with `queries` queries and scores.
  /// By one thread and the TMA, if the tensors have maps and the chunk is whole: boxes have rows behind it.
  SEQPAR_DEVICE void loadChunk(int i, int number, const CUtensorMap& map, const Input& columns, bool queries) const {
    const Chunk& chunk = this->chunk(number);
    const RowsStage to = this->stage(i);
    const bool whole = rows_.mapped && chunk.rows == kRows;
    this->waitEmpty(i);
    if (!whole) {
      startRows(to.keys, task_.k, chunk);
      if (ofState_) startPanel(to.values, {columns, this->batch_, chunk, this->head_, this->column_, task_.dv});
      if (queries) startRows(to.queries, task_.q, chunk);
      ptx::cpAsyncCommitGroup();
      ptx::cpAsyncWaitGroup<0>();
      warpgroup::fenceProxyAsync();
      ptx::syncwarp();
    }
    if (isFirstLane()) {
      const int tiles = (whole ? 2 + (queries ? 2 : 0) + (ofState_ ? 1 : 0) : 0) + 1 + (queries ? 1 : 0);
      const Record r = this->record(number);
      this->begins(i) = chunk.begins;
      ptx::mbarrierArriveExpectTx(this->full(i), tiles * kSquareBytes + 4 * kRowFactors);
      if (whole) {
        loadRows(i, to.keys, rows_.keys, chunk);
        if (ofState_) loadBox(i, to.values.offset, map, this->column_, this->head_, chunk);
        if (queries) loadRows(i, to.queries, rows_.queries, chunk);
      }
      this->template load<kSquareBytes>(i, to.inverse.offset, r.scaled);
      this->template load<4 * kRowFactors>(i, to.factors.offset, r.factors);
      if (queries) this->template load<kSquareBytes>(i, to.scores.offset, r.scores);
    }
    ptx::syncwarp();
  }
  SEQPAR_DEVICE void loadBox(int i, int to, const CUtensorMap& map, int column, int head, const Chunk& chunk) const {
    ptx::tmaLoad(ptx::sharedAddress(ptx::sharedMemory() + to), map, this->full(i), column, head,
                 static_cast<int>(chunk.first), static_cast<int>(this->batch_));
  }
  SEQPAR_DEVICE void loadRows(int i, const KeyPanels<kRows>& to, const CUtensorMap& map, const Chunk& chunk) const {
    const int head = keyHeadOf(task_, this->head_);
    loadBox(i, to.offset, map, 0, head, chunk);
    loadBox(i, to.offset + KeyPanels<kRows>::kPanelBytes, map, 64, head, chunk);
  }
  SEQPAR_DEVICE void startRows(const KeyPanels<kRows>& to, const Input& tensor, const Chunk& chunk) const {
    SEQPAR_ROLLED
    for (int panel = 0; panel < 2; ++panel) {
      startPanel({to.offset + panel * KeyPanels<kRows>::kPanelBytes},
                 {tensor, this->batch_, chunk, keyHeadOf(task_, this->head_), panel * 64, task_.dk});
    }
  }
  /// By a warp: a chunk's rows, 64 columns. Elements that do not exist are 0.
  SEQPAR_DEVICE_NOINLINE static void startPanel(const SquareRows to, const TensorRows from) {
    constexpr int kUnits = 8, kStep = 32 / kUnits;  // rows
    const int lane = threadAgain() % 32, first = lane / kUnits, unit = lane % kUnits;
    if (!from.hasUnits(64)) return loadElements(to, from, 64, lane, 32);
    const bool inside = unit * 8 < from.columns;
    SEQPAR_ROLLED
    for (int row = first; row < kRows; row += kStep) {
      ptx::cpAsync16(to.address(row / 8 * 8, row % 8, 0, unit), from.data + row * from.stride + unit * 8,
                     inside && row < from.rows);
    }
  }

  // Copiers: two warps, from the chain to memory.
  static constexpr int kFirstCopier = 32 * (kLoader + 1);  ///< thread
  /// One thread: stores what the chain shares for chunk i in arrays of a record.
  SEQPAR_DEVICE void keep(int i, uint16_t* states, uint16_t* values) const {
    if (ptx::thread() != kFirstCopier) return;
    this->startKeeping(i, states, this->roundedState(), values, this->roundedValues());
    ptx::cpAsyncBulkWaitGroupRead<0>();
    ptx::mbarrierArrive(kept());
    if (i + 1 == count_) ptx::cpAsyncBulkWaitGroup();
  }

  // The chain.
  /// Waits until the rounded state and values of the chunk before i may be replaced.
  SEQPAR_DEVICE void waitKept(int i) const {
    if (this->keeps() && i > 0) ptx::mbarrierWaitParity(kept(), (i - 1) % 2);
  }
  SEQPAR_DEVICE void share(int i, const KeyOperand& a, const Operand& d) const {
    waitKept(i);
    this->storeOperands(this->roundedState(), a);
    this->storeOperands(this->roundedValues(), d);
    this->arriveByWarp(this->shared(i));
  }
  template <class Number, int kCount>
  SEQPAR_DEVICE static void clear(Number (&x)[kCount][4]) {
    SEQPAR_UNROLL
    for (auto& of : x) of[0] = of[1] = of[2] = of[3] = 0;
  }
  /// Calls each(tile, factors of the thread's two columns of it).
  template <class Each>
  SEQPAR_DEVICE void eachFactors(const float* factors, const Each& each) const {
    const ptx::AccumulatorLayout layout{lane_};
    SEQPAR_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      float f[2];
      ptx::loadPair(factors + 8 * n + layout.column(), f[0], f[1]);
      each(n, f);
    }
  }
  SEQPAR_DEVICE void loadFactors(float (&to)[kRows / 8][2], const float* factors) const {
    eachFactors(factors, [&](int n, const float(&f)[2]) {
      to[n][0] = f[0];
      to[n][1] = f[1];
    });
  }
  /// Multiplies columns.
  SEQPAR_DEVICE void scale(Accumulator& c, const float* factors) const {
    eachFactors(factors, [&](int n, const float(&f)[2]) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) c[n][e] *= f[e % 2];
    });
  }
  /// The elements of an operand that round() or loadColumns() wrote.
  SEQPAR_DEVICE static void unpack(Accumulator& to, const Operand& a) {
    SEQPAR_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const uint32_t word = a[n / 2][n % 2 * 2 + e / 2];
        to[n][e] = e % 2 == 0 ? ptx::lowOf<T>(word) : ptx::highOf<T>(word);
      }
    }
  }
  SEQPAR_DEVICE static void round(Operand& to, const Accumulator& c) {
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) roundTiles<T>(to[k], c[2 * k], c[2 * k + 1]);
  }
  /// The transpose of the warp's columns of values.
  SEQPAR_DEVICE void loadColumns(Operand& to, const SquareRows& from) const {
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) loadLeft<false>(to[k], from, row_, k * kBlock, lane_);
  }
  /// state += a times rows: steps `first` to `last` - 1 of 16 tokens.
  SEQPAR_DEVICE void addRows(const Operand& a, const KeyPanels<kRows>& rows, int first, int last) {
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      if (k < first || k >= last) continue;
      warpgroup::multiplyStep<T, Terms::Rows>(state_, a[k], operand(rows.offset), kRows, k, true);
    }
  }
  /// c (+)= a times the transpose of rows: steps `first` to `last` - 1 of 16 channels.
  SEQPAR_DEVICE static void multiplyRows(Accumulator& c, const KeyOperand& a, const KeyPanels<kRows>& rows, int first,
                                         int last) {
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys / kBlock; ++k) {
      if (k < first || k >= last) continue;
      warpgroup::multiplyStep<T, Terms::AlongRows>(c, a[k], operand(rows.offset), kRows, k, k > 0);
    }
  }
  SEQPAR_DEVICE static void multiplySquare(Accumulator& c, const Operand& a, const SquareRows& b, bool add) {
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::AlongRows>(c, a[k], operand(b.offset), kRows, k, add || k > 0);
    }
  }
  /// Operands in registers must not be replaced before the wait for their products.
  template <int kCount>
  SEQPAR_DEVICE static void hold(const uint32_t (&a)[kCount][4]) {
#ifdef __CUDACC__
    SEQPAR_UNROLL
    for (int k = 0; k < kCount; ++k) {
      asm volatile("" ::"r"(a[k][0]), "r"(a[k][1]), "r"(a[k][2]), "r"(a[k][3]));
    }
#else
    static_cast<void>(a);
#endif
  }
  SEQPAR_DEVICE void replaceState(const typename Base::Elements& by) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4 * Base::kTiles; ++i) state_[i / 4][i % 4] = by[i];
  }
  SEQPAR_DEVICE void decayState(float total) {
    SEQPAR_UNROLL
    for (auto& tile : state_) {
      SEQPAR_UNROLL
      for (float& x : tile) x *= total;
    }
    warpgroup::fenceOperand(state_);  // before the wait that follows
  }
  // Chunks that are not finite, in few instructions: sums where factors of 0 forget.
  SEQPAR_DEVICE static void store(uint16_t* to, float x) {
    *to = static_cast<uint16_t>(ptx::pack<T>(x, 0));
  }
  /// Calls each(column of the slice, token) for the warp's columns, from `row` on.
  template <class Each>
  SEQPAR_DEVICE static void eachOfWarp(int row, const Each& each) {
    ptx::syncwarp();
    SEQPAR_ROLLED
    for (int i = threadAgain() % 32; i < kBlock * kRows; i += 32) each(row + i / kRows, i % kRows);
    ptx::syncwarp();
  }
  /// Replaces the thread's elements x of the state by next(x, channel, column of the slice).
  template <class Next>
  SEQPAR_DEVICE static void eachOfState(int row, typename Base::Elements& state, const Next& next) {
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    const int v = layout.row(row), c = layout.column();
    SEQPAR_ROLLED
    for (int i = 0; i < 4 * Base::kTiles; ++i) state[i] = next(state[i], i / 4 * 8 + c + i % 2, v + i / 2 % 2 * 8);
  }
  /// Terms of an element of the state's update: factors[t] rows[t][channel] values, which are in rows of columns
  /// (kOfColumns) or of tokens. A factor of 0 forgets.
  template <bool kOfColumns>
  SEQPAR_DEVICE_NOINLINE static float sumOfUpdates(const float* factors, const KeyPanels<kRows> rows, int channel,
                                                   const SquareRows values, int column) {
    float sum = 0;
    for (int t = 0; t < kRows; ++t) {
      const float value = ptx::lowOf<T>(kOfColumns ? *values.at(column, t) : *values.at(t, column));
      sum += forgetting(factors[t], forgetting(ptx::lowOf<T>(*rows.at(t, channel)), value));
    }
    return sum;
  }

  const RowsTask& rows_;
  const int first_, count_;  ///< of the window's chunks
  const bool isMap_;
  const float* const before_;
  float* const after_;
};

}  // namespace seqpar::attn::delta::half
