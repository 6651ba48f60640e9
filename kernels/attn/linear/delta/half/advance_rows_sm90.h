// The states of a window's chunks for 16-bit tensors on sm_90a, and the outputs, from rows of q, k and v as they are
// (chain_rows_sm90.h). With S the state before a chunk, T the inverse, its columns times betas, and f the factors of
// RowFactor:
//     X^T = V^T - f_in (S^T K^T)      U^T = X^T T^T      O^T = f_q (S^T Q^T) + U^T P^T
//     S'^T = total S^T + (f_out U^T) K
// Outputs of a chunk through scores run while the next state is rounded; half of those of queries while X is computed,
// the others while U is rounded.
#pragma once

#include "kernels/attn/linear/delta/half/chain_rows_sm90.h"

namespace seqpar::attn::delta::half {

template <class T>
class AdvanceRowsSm90 : ChainRowsSm90<T> {
 public:
  SEQPAR_DEVICE static void run(const RowsTask& task) { AdvanceRowsSm90(task).window(); }

 private:
  using Rows = ChainRowsSm90<T>;
  using Base = typename Rows::Base;
  using Base::lane_;
  using Base::ofState_;
  using Base::row_;
  using Base::state_;
  using Base::task_;
  using Base::values_;
  using Rows::count_;
  using Rows::isMap_;
  using typename Rows::KeyOperand;
  using typename Rows::Operand;
  static constexpr int kSteps = kKeys / kBlock;

  SEQPAR_DEVICE explicit AdvanceRowsSm90(const RowsTask& task) : Rows(task) {}

  SEQPAR_DEVICE bool writesOut() const { return task_.writesOut && ofState_ && !isMap_; }

  SEQPAR_DEVICE void window() {
    ptx::griddepcontrolLaunchDependents();
    this->placeBarriers();
    if (this->isChain()) {
      this->loadFirst();
      if (writesOut()) {
        steps<true, true>();
      } else {
        ofState_ ? steps<true, false>() : steps<false, false>();
      }
      this->storeLast();
    } else if (this->isLoader()) {
      for (int i = 0; i < count_; ++i) this->loadChunk(i, i, this->rows_.values, task_.v, writesOut());
    } else {
      for (int i = 0; i < count_; ++i) end(i);
      if (ptx::thread() == Rows::kFirstCopier) ptx::cpAsyncBulkWaitGroup();
    }
  }

  SEQPAR_DEVICE void end(int i) const {
    if (writesOut()) return copyOut(i);
    if (!this->keeps()) return;
    const Record r = this->record(i);
    this->keep(i, r.state, r.values);
  }
  SEQPAR_DEVICE void copyOut(int i) const {
    const Chunk& chunk = this->chunk(i);
    const bool isBox = this->rows_.storesBoxes && chunk.rows == kRows;
    const int token = static_cast<int>(chunk.first);  // loaded before the wait
    ptx::barrierSync<kSm90OutRounded, Base::kBoth>();
    if (isBox) {
      if (ptx::thread() == Rows::kFirstCopier) this->storeBox(this->rows_.outputs, token);
      ptx::syncwarp();
    } else {
      storeTensor<kColumns, kRows, ChainSm90Memory::kCopiers>(
          {task_.out, this->batch_, chunk, this->head_, this->column_, task_.dv}, 0, this->outputs(),
          threadAgain() - Rows::kFirstCopier);
    }
    if (i + 1 < count_) ptx::barrierArrive<kSm90Read, Base::kBoth>();
  }

  // The chain.
  /// kOfState: of the state, not of the product of the chunks' matrices. The outer loop starts at the first chunk, at
  /// one that begins a sequence, and after one that is not finite; the inner one has no code of these.
  template <bool kOfState, bool kOut>
  SEQPAR_DEVICE void steps() {
    KeyOperand a;
    int i = 0;
    while (i < count_) {
      this->waitFull(i);
      if (this->begins(i) != 0) {
        this->loadState(kOfState ? task_.initial : nullptr, this->sequenceIndex(this->chunk(i)));
      }
      const RowsStage s = Rows::uniformStage(i);
      startChunk(s, a);
      Operand v;
      loadOwn<kOfState>(s, v);
      endStart<kOfState>(v);
      bool finite = true;
      for (;;) {
        Operand x;
        const RowsStage s = Rows::uniformStage(i);
        finite = computeValues<kOfState, kOut>(s, a, x);
        if (!finite) break;
        updateState<kOfState, kOut>(i, s, a, x);
        ++i;
        if (i == count_ || begins_) break;
      }
      if (finite) continue;
      computeExactly<kOfState, kOut>(i, a);
      ++i;
    }
  }
  /// Rounds the state before chunk i and starts its product with keys.
  SEQPAR_DEVICE void startChunk(const RowsStage& s, KeyOperand& a) {
    this->roundState(a);
    warpgroup::arrive();
    this->multiplyRows(values_, a, s.keys, 0, kSteps);
    warpgroup::commit();
  }
  /// Loads the terms of X without the state, during that product.
  template <bool kOfState>
  SEQPAR_DEVICE void loadOwn(const RowsStage& s, Operand& v) {
    plain_ = s.factors[kOfChunk + 1] != 0;
    if constexpr (kOfState) this->loadColumns(v, s.values);
    this->loadFactors(in_, s.factors + kOfKeysIn);
  }
  template <bool kOfState>
  SEQPAR_DEVICE void endStart(const Operand& v) {
    if constexpr (kOfState) this->unpack(own_, v);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(values_);
  }
  /// X and U of a chunk, after its product of the state with keys. Returns whether X is finite: the state, keys
  /// and values are, too; the state is still that before the chunk. U is in flight.
  template <bool kOfState, bool kOut>
  SEQPAR_DEVICE bool computeValues(const RowsStage& s, const KeyOperand& a, Operand& x) {
    lane_ = threadAgain() % 32;
    if constexpr (kOut) {
      warpgroup::arrive();
      this->multiplyRows(out_, a, s.queries, 0, kSteps / 2);
      warpgroup::commit();
    }
    SEQPAR_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) values_[n][e] = (kOfState ? own_[n][e] : 0) - in_[n][e % 2] * values_[n][e];
    }
    bool finite = plain_;
    if constexpr (!ptx::kIsBf16<T>) finite = finite & allFinite(values_) & allFinite(state_);  // rounding clamps
    this->round(x, values_);
    warpgroup::arrive();
    this->multiplySquare(values_, x, s.inverse, false);
    warpgroup::commit();
    if constexpr (kOut) {
      this->multiplyRows(out_, a, s.queries, kSteps / 2, kSteps);
      warpgroup::commit();
    }
    if constexpr (ptx::kIsBf16<T>) finite = finite & allFinite<T>(x);
    return !ptx::barrierRedOr<warpgroup::kThreads>(kSm90Multiplied, !finite);
  }
  /// The state after chunk i; its outputs, and starts the next chunk. No product is in flight from one chunk to the
  /// next: ptxas would wait for it first.
  template <bool kOfState, bool kOut>
  SEQPAR_DEVICE void updateState(int i, const RowsStage& s, KeyOperand& a, Operand& x) {
    this->decayState(s.factors[kOfChunk]);
    this->loadFactors(in_, s.factors + kOfKeysOut);
    warpgroup::wait<kOut ? 1 : 0>();
    warpgroup::fenceOperand(values_);
    Rows::hold(x);
    this->round(d_, values_);
    SEQPAR_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) values_[n][e] *= in_[n][e % 2];
    }
    this->round(x, values_);
    warpgroup::arrive();
    this->addRows(x, s.keys, 0, kRows / kBlock);
    warpgroup::commit();
    if (!kOut && kOfState && this->keeps()) this->share(i, a, d_);
    const bool more = i + 1 < count_;
    const int next = more ? i + 1 : i;  // no condition: products would wait for each other
    this->waitFull(next);
    const RowsStage after = Rows::uniformStage(next);
    begins_ = this->begins(next) != 0;
    if constexpr (kOut) {
      warpgroup::wait<1>();
      warpgroup::fenceOperand(out_);
      this->scale(out_, s.factors + kOfQueries);
      warpgroup::arrive();
      this->multiplySquare(out_, d_, s.scores, true);
      warpgroup::commit();
    }
    warpgroup::wait<kOut ? 1 : 0>();
    warpgroup::fenceOperand(state_);
    Rows::hold(x);
    Rows::hold(a);
    startChunk(after, a);
    Operand v;
    loadOwn<kOfState>(after, v);  // in flight during the following
    if constexpr (kOut) {
      warpgroup::wait<1>();
      finishOut(i);
    } else {
      this->release(i);
    }
    endStart<kOfState>(v);
  }
  /// The outputs of chunk i, after their products.
  SEQPAR_DEVICE void finishOut(int i) {
    warpgroup::fenceOperand(out_);
    Rows::hold(d_);
    this->putOut(i, out_);
  }
  /// Chunk i after computeValues(), with sums where factors of 0 forget.
  template <bool kOfState, bool kOut>
  SEQPAR_DEVICE void computeExactly(int i, const KeyOperand& a) {
    warpgroup::wait<0>();
    this->waitKept(i);
    this->storeOperands(this->roundedState(), a);
    if (kOut && i > 0) ptx::barrierSync<kSm90Read, Base::kBoth>();
    typename Base::Elements state;
    this->copyState(state);
    sumExactly<kOfState, kOut>(this->stage(i), this->outputs(), row_, state);
    warpgroup::fenceProxyAsync();  // before copies to the stage
    this->replaceState(state);
    if (!kOut && kOfState && this->keeps()) this->arriveByWarp(this->shared(i));
    if (kOut) ptx::barrierArrive<kSm90OutRounded, Base::kBoth>();
    this->release(i);
  }
  /// The warp's columns, in few instructions. X replaces values in the stage.
  template <bool kOfState, bool kOut>
  SEQPAR_DEVICE_NOINLINE static void sumExactly(const RowsStage s, const SquareRows out, int row,
                                                typename Base::Elements& state) {
    const KeyPanels<kColumns> before{Base::Memory::kState};
    const SquareRows written{Base::Memory::kValues};
    const float* const f = s.factors;
    Rows::eachOfWarp(row, [&](int v, int t) {
      const float sum = sumForgetting<T, true, true>(s.keys, t, before, v, 0, kKeys);
      const float own = kOfState ? ptx::lowOf<T>(*s.values.at(t, v)) : 0;
      Rows::store(s.values.at(t, v), own - forgetting(f[kOfKeysIn + t], sum));
    });
    Rows::eachOfWarp(row, [&](int v, int t) {
      const int last = t / kBlock * kBlock + kBlock;
      Rows::store(written.at(v, t), sumForgetting<T, true, false>(s.inverse, t, s.values, v, 0, last));
    });
    if constexpr (kOut) {
      Rows::eachOfWarp(row, [&](int v, int t) {
        const float sum = sumForgetting<T, true, true>(s.queries, t, before, v, 0, kKeys);
        const int last = t / kBlock * kBlock + kBlock;
        Rows::store(out.at(t, v), forgetting(f[kOfQueries + t], sum) +
                                      sumForgetting<T, true, true>(s.scores, t, written, v, 0, last));
      });
    }
    Rows::eachOfState(row, state, [&](float x, int c, int v) {
      return forgetting(f[kOfChunk], x) + Rows::template sumOfUpdates<true>(f + kOfKeysOut, s.keys, c, written, v);
    });
  }

  bool begins_ = false;      ///< whether the next chunk begins a sequence
  bool plain_ = true;        ///< whether the chunk's keys, queries and inverse are finite
  Operand d_;                ///< U, rounded
  float own_[kRows / 8][4];  ///< V
  float in_[kRows / 8][2];   ///< factors of the thread's columns
  float out_[kRows / 8][4];  ///< of the transpose
};

}  // namespace seqpar::attn::delta::half
