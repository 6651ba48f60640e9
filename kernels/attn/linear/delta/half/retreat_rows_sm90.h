// The gradients of the states of a window's chunks for 16-bit tensors on sm_90a, from rows of q, k and dOut as they are
// (chain_rows_sm90.h). With Y the gradient of the state after the chunk, T the inverse, its columns times betas, f the
// factors of RowFactor:
//     dD^T = dO^T P + f_out (Y^T K^T)      dX^T = dD^T T      Y^T = total Y^T + (f_q dO^T) Q - (f_in dX^T) K
// dX, which has the factors beta of T, are the gradients of values. Half of the product with Q runs while dD is
// rounded, the other one while dX is.
#pragma once

#include "kernels/attn/linear/delta/half/chain_rows_sm90.h"

namespace seqpar::attn::delta::half {

template <class T>
class RetreatRowsSm90 : ChainRowsSm90<T> {
 public:
  SEQPAR_DEVICE static void run(const RowsTask& task) { RetreatRowsSm90(task).window(); }

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

  SEQPAR_DEVICE explicit RetreatRowsSm90(const RowsTask& task) : Rows(task), writesValues_(retreatWritesValues(task)) {}

  /// The chunk of running number i.
  SEQPAR_DEVICE int number(int i) const { return count_ - 1 - i; }

  SEQPAR_DEVICE void window() {
    if (task_.segmentCount > 0) ptx::griddepcontrolLaunchDependents();
    this->placeBarriers();
    if (this->isChain()) {
      this->loadFirst();
      ofState_ ? steps<true>() : steps<false>();
      this->storeLast();
    } else if (this->isLoader()) {
      for (int i = 0; i < count_; ++i) {
        this->loadChunk(i, number(i), this->rows_.outputs, task_.dOut, ofState_);
      }
    } else {
      for (int i = 0; i < count_; ++i) end(i);
    }
  }
  SEQPAR_DEVICE void end(int i) const {
    if (!this->keeps()) return;
    const Record r = this->record(number(i));
    writesValues_ ? storeGradients(i, r.dState) : this->keep(i, r.dState, r.dWritten);
  }
  /// Copies the gradients of the state to a record's array, and those of values to the tensor.
  SEQPAR_DEVICE void storeGradients(int i, uint16_t* states) const {
    const Chunk& chunk = this->chunk(number(i));
    const bool isBox = this->rows_.storesBoxes && chunk.rows == kRows, first = ptx::thread() == Rows::kFirstCopier;
    const int token = static_cast<int>(chunk.first);  // loaded before the wait
    if (isBox && !first) return;
    if (first) {  // others may be several chunks ahead, and would see the phase of an earlier one
      ptx::mbarrierWaitParity(this->shared(i), i / Base::Memory::kStages % 2);
      warpgroup::fenceProxyAsync();
      ptx::cpAsyncBulkStore(states + int64_t{this->column_} * kKeys, ptx::sharedMemory() + this->roundedState().offset,
                            kKeyBytes);
      if (isBox) {
        ptx::tmaStore(this->rows_.values, ptx::sharedAddress(ptx::sharedMemory() + this->outputs().offset),
                      this->column_, this->head_, token, static_cast<int>(this->batch_));
      }
      ptx::cpAsyncBulkCommitGroup();
    }
    if (!isBox) {
      ptx::barrierSync<kSm90Read, ChainSm90Memory::kCopiers>();
      storeTensor<kColumns, kRows, ChainSm90Memory::kCopiers>(
          {task_.dv_, this->batch_, chunk, this->head_, this->column_, task_.dv}, 0, this->outputs(),
          threadAgain() - Rows::kFirstCopier);
      ptx::barrierSync<kSm90Read, ChainSm90Memory::kCopiers>();
      if (!first) return;
    }
    ptx::cpAsyncBulkWaitGroupRead<0>();
    ptx::mbarrierArrive(Rows::kept());
    if (i + 1 == count_) ptx::cpAsyncBulkWaitGroup();
  }

  /// kOfState: of the state, not of the product of the chunks' matrices. The outer loop continues behind a chunk that
  /// begins a sequence, and one that is not finite; the inner one has no code of these.
  template <bool kOfState>
  SEQPAR_DEVICE void steps() {
    int i = 0;
    while (i < count_) {
      bool begins = false, finite = true;
      KeyOperand a;
      for (;;) {
        this->waitFull(i);
        begins = this->begins(i) != 0;
        finite = step<kOfState>(i, a);
        if (!finite) break;
        ++i;
        if (i == count_ || begins) break;
      }
      if (!finite) computeExactly<kOfState>(i++, a);
      if (!begins) continue;
      if (kOfState && task_.dInitial != nullptr && !isMap_) {
        this->storeState(task_.dInitial, this->sequenceIndex(this->chunk(number(i - 1))));
      }
      this->loadState(nullptr, 0);
    }
  }
  /// Chunk i. Returns whether the state, the tensors and the inverse are finite; else it does not change the state, and
  /// `a` is the rounded one.
  template <bool kOfState>
  SEQPAR_DEVICE bool step(int i, KeyOperand& a) {
    lane_ = threadAgain() % 32;
    const RowsStage s = Rows::uniformStage(i);
    Operand d, x, ofValues;
    float through[kRows / 8][4];  // dO^T P
    bool finite = true;
    if constexpr (!ptx::kIsBf16<T>) finite = allFinite(state_);  // rounding clamps
    if constexpr (kOfState) {
      warpgroup::arrive();
      multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(through, operand(s.values.offset), operand(s.scores.offset),
                                                        false);
      warpgroup::commit();
    }
    this->roundState(a);
    warpgroup::arrive();
    this->multiplyRows(values_, a, s.keys, 0, kKeys / kBlock);
    warpgroup::commit();
    if constexpr (kOfState) this->loadColumns(x, s.values);
    finite = finite & (s.factors[kOfChunk + 1] != 0);  // no branches between products
    if constexpr (ptx::kIsBf16<T>) finite = finite & allFinite<T>(a);
    if constexpr (kOfState) finite = finite & allFinite<T>(x);
    if (ptx::barrierRedOr<warpgroup::kThreads>(kSm90Multiplied, !finite)) {
      warpgroup::wait<0>();
      warpgroup::fenceOperand(values_);
      if constexpr (kOfState) warpgroup::fenceOperand(through);
      return false;
    }
    this->decayState(s.factors[kOfChunk]);
    Operand outputs;  // f_q dO
    if constexpr (kOfState) {
      float elements[kRows / 8][4];
      this->unpack(elements, x);
      this->scale(elements, s.factors + kOfQueries);
      this->round(outputs, elements);
      warpgroup::arrive();
      this->addRows(outputs, s.queries, 0, 2);
      warpgroup::commit();
    }
    float f[kRows / 8][2];
    this->loadFactors(f, s.factors + kOfKeysOut);
    warpgroup::wait<kOfState ? 1 : 0>();
    warpgroup::fenceOperand(values_);
    if constexpr (kOfState) warpgroup::fenceOperand(through);
    SEQPAR_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) values_[n][e] = f[n][e % 2] * values_[n][e] + (kOfState ? through[n][e] : 0);
    }
    this->round(d, values_);
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::Rows>(values_, d[k], operand(s.inverse.offset), kRows, k, k > 0);
    }
    warpgroup::commit();
    if constexpr (kOfState) {
      this->addRows(outputs, s.queries, 2, 4);
      warpgroup::commit();
    }
    this->loadFactors(f, s.factors + kOfKeysIn);
    warpgroup::wait<kOfState ? 1 : 0>();
    warpgroup::fenceOperand(values_);
    Rows::hold(d);
    if constexpr (kOfState) this->round(ofValues, values_);
    SEQPAR_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) values_[n][e] *= f[n][e % 2];
    }
    this->round(x, values_);
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      warpgroup::subtractStep<T, Terms::Rows>(state_, x[k], operand(s.keys.offset), kRows, k, true);
    }
    warpgroup::commit();
    if constexpr (kOfState) {
      if (this->keeps()) writesValues_ ? shareGradients(i, a, ofValues) : this->share(i, a, d);
    }
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    Rows::hold(x);
    if constexpr (kOfState) Rows::hold(outputs);
    Rows::hold(a);
    this->release(i);
    return true;
  }

  /// As share(), with the gradients of values, a transpose, as rows of tokens.
  SEQPAR_DEVICE void shareGradients(int i, const KeyOperand& a, const Operand& ofValues) const {
    this->waitKept(i);
    const int inEight = lane_ % 8, odd = lane_ / 8 % 2, upper = lane_ / 16;
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      ptx::stmatrixX4Trans(this->outputs().address(k * kBlock + upper * 8, inEight, 2 * row_, odd), ofValues[k]);
    }
    this->storeOperands(this->roundedState(), a);
    this->arriveByWarp(this->shared(i));
  }

  /// Chunk i after step(), with sums where factors of 0 forget.
  template <bool kOfState>
  SEQPAR_DEVICE void computeExactly(int i, const KeyOperand& a) {
    this->waitKept(i);
    this->storeOperands(this->roundedState(), a);
    typename Base::Elements state;
    this->copyState(state);
    sumExactly<kOfState>(this->stage(i), row_, state);
    this->replaceState(state);
    if (kOfState && this->keeps()) this->arriveByWarp(this->shared(i));
    this->release(i);
  }
  /// The warp's columns, in few instructions.
  template <bool kOfState>
  SEQPAR_DEVICE_NOINLINE static void sumExactly(const RowsStage s, int row, typename Base::Elements& state) {
    const KeyPanels<kColumns> after{Base::Memory::kState};
    const SquareRows dWritten{Base::Memory::kValues}, dX{Base::Memory::kOut};
    const float* const f = s.factors;
    Rows::eachOfWarp(row, [&](int v, int t) {
      const float sum = forgetting(f[kOfKeysOut + t], sumForgetting<T, true, true>(s.keys, t, after, v, 0, kKeys));
      const float through =
          kOfState ? sumForgetting<T, false, false>(s.scores, t, s.values, v, t / kBlock * kBlock, kRows) : 0;
      Rows::store(dWritten.at(v, t), sum + through);
    });
    Rows::eachOfWarp(row, [&](int v, int t) {
      Rows::store(dX.at(t, v), sumForgetting<T, false, true>(s.inverse, t, dWritten, v, t / kBlock * kBlock, kRows));
    });
    Rows::eachOfState(row, state, [&](float x, int c, int v) {
      const float sum =
          forgetting(f[kOfChunk], x) - Rows::template sumOfUpdates<false>(f + kOfKeysIn, s.keys, c, dX, v);
      return kOfState ? sum + Rows::template sumOfUpdates<false>(f + kOfQueries, s.queries, c, s.values, v) : sum;
    });
  }

  const bool writesValues_;  ///< gradients of values, instead of those of D
};

}  // namespace seqpar::attn::delta::half
