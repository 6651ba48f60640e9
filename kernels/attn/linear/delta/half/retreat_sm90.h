// The gradients of the states of a window's chunks for 16-bit tensors on sm_90a (chain_sm90.h); formulas in retreat.h.
#pragma once

#include "kernels/attn/linear/delta/half/chain_sm90.h"

namespace seqpar::attn::delta::half {

template <class T>
class RetreatSm90 : ChainSm90<T, ChainSm90Memory::kRetreatHelpers> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { RetreatSm90(task).window(); }

 private:
  using Base = ChainSm90<T, ChainSm90Memory::kRetreatHelpers>;
  using Base::column_;
  using Base::kTiles;
  using Base::lane_;
  using Base::ofState_;
  using Base::row_;
  using Base::stage;
  using Base::state_;
  using Base::task_;
  using Base::values_;

  SEQPAR_DEVICE explicit RetreatSm90(const Task& task) : Base(task) {}

  /// The chunk of running number i.
  SEQPAR_DEVICE int number(int i) const { return task_.count - 1 - i; }

  SEQPAR_DEVICE void window() {
    this->placeBarriers(ofState_ ? ChainSm90Memory::kRetreatHelpers : 0, this->keeps() ? 1 : 0);
    this->runRoles(
        ofState_, [&](int i) { start(i); }, [&](int i) { help(i); },
        [&] { ofState_ ? steps<true>() : steps<false>(); });
  }

  SEQPAR_DEVICE void start(int i) const {
    const Record r = this->record(number(i));
    const ChainSm90Stage to = stage(i);
    const int begins = this->chunk(number(i)).begins;
    this->waitEmpty(i);
    this->begins(i) = begins;
    ptx::mbarrierArriveExpectTx(this->full(i), 2 * kKeyBytes + 4 * kKeys + (ofState_ ? kKeyBytes + kSquareBytes : 0));
    this->template load<kKeyBytes>(i, to.kOut.offset, r.kOut);
    if (ofState_) {
      this->template load<kSquareBytes>(i, to.scores.offset, r.scores);
      this->template load<kKeyBytes>(i, to.qIn.offset, r.qIn);
    }
    this->template load<kKeyBytes>(i, to.w.offset, r.w);
    this->template load<4 * kKeys>(i, to.total.offset, r.total);
  }
  /// The helper: dOut to a stage.
  SEQPAR_DEVICE void startValues(int i) const {
    if (i >= task_.count) return;
    startTensor<kColumns, ChainSm90Memory::kRetreatHelpers>(
        stage(i).values, {task_.dOut, this->batch_, this->chunk(number(i)), this->head_, column_, task_.dv},
        threadAgain() - warpgroup::kThreads);
    ptx::cpAsyncCommitGroup();
  }
  SEQPAR_DEVICE void finishValues(int i) const {
    if (i >= task_.count) return;
    ptx::cpAsyncWaitGroup<0>();
    warpgroup::fenceProxyAsync();
    ptx::mbarrierArrive(this->full(i));
  }

  /// kOfState: of the state, not of the product of the chunks' matrices.
  template <bool kOfState>
  SEQPAR_DEVICE void steps() {
    for (int i = 0; i < task_.count; ++i) step<kOfState>(i);
  }
  /// Whether the warp's columns of dOut are finite.
  SEQPAR_DEVICE bool isFinite(const SquareRows& dOut) const {
    uint32_t words[kRows / kBlock][4];
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      ptx::load(words[k], dOut.unit(k * kBlock + lane_ / 2, row_ / 8 + lane_ % 2));
    }
    return allFinite<T>(words);
  }
  template <bool kOfState>
  SEQPAR_DEVICE void step(int i) {
    lane_ = threadAgain() % 32;
    const ChainSm90Stage s = stage(i);
    uint32_t a[kKeys / kBlock][4], d[kRows / kBlock][4];
    this->waitFull(i);
    const int begins = this->begins(i);
    if constexpr (kOfState) {
      warpgroup::arrive();
      multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(values_, operand(s.values.offset), operand(s.scores.offset),
                                                        false);
      warpgroup::commit();
    }
    this->roundState(a);
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::AlongRows>(values_, a[k], operand(s.kOut.offset), kRows, k, kOfState || k > 0);
    }
    warpgroup::commit();
    const bool exact = ptx::voteAll(this->isExact(a) && (!kOfState || isFinite(s.values)));
    this->decayState(s.total, exact);
    typename Base::Elements before;
    if (!exact) this->copyState(before);
    if constexpr (kOfState) {
      warpgroup::arrive();
      multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(state_, operand(s.values.offset), operand(s.qIn.offset), true);
      warpgroup::commit();
    }
    warpgroup::wait<kOfState ? 1 : 0>();
    warpgroup::fenceOperand(values_);
    if (!exact) repairValues<kOfState>(s, a);
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) roundTiles<T>(d[k], values_[2 * k], values_[2 * k + 1]);
    const bool finite = ptx::voteAll(allFinite<T>(d));
    if (exact && !finite) {
      warpgroup::wait<0>();
      warpgroup::fenceOperand(state_);
      this->copyState(before);
    }
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      warpgroup::subtractStep<T, Terms::Rows>(state_, d[k], operand(s.w.offset), kRows, k, true);
    }
    warpgroup::commit();
    if (kOfState && this->keeps()) this->share(i, s.kOut, a, s.scores, d);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    if (!exact || !finite) {
      this->storeOperands(this->roundedValues(), d);
      this->recomputeState(before, [&](int c, int v) {
        const float sum = -sumForgetting<T, false, true>(s.w, c, this->roundedValues(), v, 0, kRows);
        return kOfState && !exact ? sum + sumForgetting<T, false, false>(s.qIn, c, s.values, v, 0, kRows) : sum;
      });
    }
    this->release(i);
    if (begins != 0) {
      if (kOfState && task_.dInitial != nullptr) {
        this->storeState(task_.dInitial, this->sequenceIndex(this->chunk(number(i))));
      }
      this->loadState(nullptr, 0);
    }
  }
  template <bool kOfState>
  SEQPAR_DEVICE void repairValues(const ChainSm90Stage& s, const uint32_t (&a)[kKeys / kBlock][4]) {
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    this->storeOperands(this->roundedState(), a);
    recompute(values_, row_, 0, [&](int v, int t) {
      const float sum = sumForgetting<T, true, true>(s.kOut, t, this->roundedState(), v, 0, kKeys);
      return kOfState ? sum + sumForgetting<T, false, false>(s.scores, t, s.values, v, t / kBlock * kBlock, kRows)
                      : sum;
    });
  }

  SEQPAR_DEVICE void help(int i) {
    if (i == 0) {
      startValues(0);
      finishValues(0);
      startValues(1);
    }
    finishValues(i + 1);
    const bool keeps = this->keeps() && Base::isKeeper();
    if (keeps && i > 0) this->finishKeeping(i - 1);  // waitEmpty() of this thread needs it
    ptx::syncwarp();
    if (i + 2 < task_.count) {
      this->waitEmpty(i + 2);
      startValues(i + 2);
    }
    if (keeps) {
      const Record r = this->record(number(i));
      this->startKeeping(i, r.dState, stage(i).kOut, r.dWritten, stage(i).scores);
      if (i + 1 == task_.count) this->finishKeeping(i);
    }
    ptx::syncwarp();
  }
};

}  // namespace seqpar::attn::delta::half
