// The gradients of the states of a window's chunks for 16-bit tensors on sm_90a (chain_sm90.h); formulas in retreat.h.
#pragma once

#include "kernels/attn/linear/delta/half/chain_sm90.h"

namespace seqpar::attn::delta::half {

template <class T>
class RetreatSm90 : ChainSm90<T> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { RetreatSm90(task).window(); }

 private:
  using Base = ChainSm90<T>;
  using Base::column_;
  using Base::kTiles;
  using Base::lane_;
  using Base::ofState_;
  using Base::row_;
  using Base::stage;
  using Base::state_;
  using Base::task_;

  static constexpr uint32_t kSigns = 0x80008000U;

  SEQPAR_DEVICE explicit RetreatSm90(const Task& task) : Base(task) {}

  /// The chunk of running number i.
  SEQPAR_DEVICE int number(int i) const { return task_.count - 1 - i; }

  SEQPAR_DEVICE void window() {
    this->placeBarriers(ofState_ ? warpgroup::kThreads : 0);
    this->runRoles([&](int i) { start(i); }, [&](int i) { help(i); },
                   [&] {
                     for (int i = 0; i < task_.count; ++i) ofState_ ? step<true>(i) : step<false>(i);
                   });
  }

  SEQPAR_DEVICE void start(int i) const {
    const Record r = this->record(number(i));
    const ChainSm90Stage to = stage(i);
    this->waitEmpty(i);
    ptx::mbarrierArriveExpectTx(this->full(i), 2 * kKeyBytes + 4 * kKeys + (ofState_ ? kKeyBytes + kSquareBytes : 0));
    this->template load<kKeyBytes>(i, to.kOut.offset, r.kOut);
    if (ofState_) {
      this->template load<kSquareBytes>(i, to.scores.offset, r.scores);
      this->template load<kKeyBytes>(i, to.qIn.offset, r.qIn);
    }
    this->template load<kKeyBytes>(i, to.w.offset, r.w);
    this->template load<4 * kKeys>(i, to.total.offset, r.total);
  }
  /// The helper: dOut to a stage that the chain has released.
  SEQPAR_DEVICE void startValues(int i) const {
    if (!ofState_ || i >= task_.count) return;
    startTensor<kColumns, warpgroup::kThreads>(
        stage(i).values, {task_.dOut, this->batch_, this->chunk(number(i)), this->head_, column_, task_.dv},
        threadAgain() - warpgroup::kThreads);
    ptx::cpAsyncCommitGroup();
  }
  SEQPAR_DEVICE void finishValues(int i) const {
    if (!ofState_ || i >= task_.count) return;
    ptx::cpAsyncWaitGroup<0>();
    warpgroup::fenceProxyAsync();
    ptx::mbarrierArrive(this->full(i));
  }

  /// kOfState: of the state, not of the product of the chunks' matrices.
  template <bool kOfState>
  SEQPAR_DEVICE void step(int i) {
    lane_ = threadAgain() % 32;
    const int begins = this->chunk(number(i)).begins;
    const ChainSm90Stage s = stage(i);
    const auto rounded = this->roundedState();
    uint32_t a[kKeys / kBlock][4], d[kRows / kBlock][4];
    float dD[kRows / 8][4], added[kTiles][4];  // of the transposes; added: to Y
    this->roundState(a);
    this->waitFull(i);
    warpgroup::arrive();
    if constexpr (kOfState) {
      multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(dD, operand(s.values.offset), operand(s.scores.offset), false);
    }
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::AlongRows>(dD, a[k], operand(s.kOut.offset), kRows, k, kOfState || k > 0);
    }
    warpgroup::commit();
    if constexpr (kOfState) {
      warpgroup::arrive();
      multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(added, operand(s.values.offset), operand(s.qIn.offset), false);
      warpgroup::commit();
    }
    this->shareState(i, a, false);
    warpgroup::wait<kOfState ? 1 : 0>();
    warpgroup::fenceOperand(dD);
    // The product with `added` is in flight: a repair must wait.
    const bool finite = ptx::voteAll(allFinite(dD));
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) roundTiles<T>(d[k], dD[2 * k], dD[2 * k + 1]);
    if (finite) this->shareValues(d, false);
    SEQPAR_UNROLL
    for (auto& words : d) {
      SEQPAR_UNROLL
      for (auto& word : words) word ^= kSigns;
    }
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::Rows>(added, d[k], operand(s.w.offset), kRows, k, kOfState || k > 0);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(added);
    if (!finite) {
      recompute(dD, row_, 0, [&](int v, int t) {
        const float sum = sumForgetting<T, true, true>(s.kOut, t, rounded, v, 0, kKeys);
        return kOfState ? sum + sumForgetting<T, false, false>(s.scores, t, s.values, v, t / kBlock * kBlock, kRows)
                        : sum;
      });
      SEQPAR_UNROLL
      for (int k = 0; k < kRows / kBlock; ++k) roundTiles<T>(d[k], dD[2 * k], dD[2 * k + 1]);
      this->shareValues(d, false);
      SEQPAR_UNROLL
      for (auto& tile : added) {
        SEQPAR_UNROLL
        for (auto& x : tile) x = asFloat(0x7fc00000U);  // recomputed
      }
    }
    this->update(s.total, added, [&](int c, int v) {
      const float sum = -sumForgetting<T, false, true>(s.w, c, this->roundedValues(), v, 0, kRows);
      return kOfState ? sum + sumForgetting<T, false, false>(s.qIn, c, s.values, v, 0, kRows) : sum;
    });
    this->release(i);
    if (begins != 0) {
      if (kOfState && task_.dInitial != nullptr) {
        this->storeState(task_.dInitial, this->sequenceIndex(this->chunk(number(i))));
      }
      this->loadState(nullptr, 0);
    }
  }

  SEQPAR_DEVICE void help(int i) {
    lane_ = threadAgain() % 32;
    const Record r = this->record(number(i));
    const int helper = threadAgain() - warpgroup::kThreads;
    if (i == 0) {
      startValues(0);
      finishValues(0);
      startValues(1);
    }
    ptx::barrierSync<kSm90StateRounded, Base::kBoth>();  // the chain has finished the chunk before
    finishValues(i + 1);
    startValues(i + 2);
    if (this->keeps()) {
      storeTile<kColumns, warpgroup::kThreads>(r.dState + int64_t{column_} * kKeys, this->roundedState(), helper);
    }
    ptx::barrierSync<kSm90ValuesRounded, Base::kBoth>();
    if (this->keeps()) {
      storeImage<kSquareBytes, warpgroup::kThreads>(r.dWritten + int64_t{column_} * kRows, this->roundedValues().offset,
                                                    helper);
    }
    this->finishReading(i);
    this->release(i);
  }
};

}  // namespace seqpar::attn::delta::half
