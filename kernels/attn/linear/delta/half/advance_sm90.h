// The states of a window's chunks for 16-bit tensors on sm_90a, and the outputs (chain_sm90.h).
#pragma once

#include "kernels/attn/linear/delta/half/chain_sm90.h"
#include "kernels/attn/linear/delta/half/marks_sm90.h"
#include "kernels/attn/linear/delta/half/rows_task_sm90.h"

namespace seqpar::attn::delta::half {

/// kMarked: with Task::marks. Another kernel: the check alone would slow all chains by 1 to 3 %.
template <class T, bool kMarked = false>
class AdvanceSm90 : ChainSm90<T, ChainSm90Memory::kAdvanceHelpers> {
 public:
  SEQPAR_DEVICE static void run(const RowsTask& task) { AdvanceSm90(task).window(); }

 private:
  using Base = ChainSm90<T, ChainSm90Memory::kAdvanceHelpers>;
  using Base::column_;
  using Base::kTiles;
  using Base::lane_;
  using Base::ofState_;
  using Base::row_;
  using Base::stage;
  using Base::state_;
  using Base::task_;
  using Base::values_;

  SEQPAR_DEVICE explicit AdvanceSm90(const RowsTask& task) : Base(task), rows_(task) {}

  SEQPAR_DEVICE bool writesOut() const { return task_.writesOut && ofState_; }

  SEQPAR_DEVICE void window() {
    ptx::griddepcontrolLaunchDependents();  // Task::overlaps: its CTAs get the SMs that these leave idle
    this->placeBarriers(0, this->keeps() ? 1 : 0);
    this->runRoles(
        writesOut() || this->keeps(), [&](int i) { start(i); }, [&](int i) { writesOut() ? copyOut(i) : keep(i); },
        [&] {
          if (!ofState_) return steps<false, false>();
          task_.writesOut ? steps<true, true>() : steps<true, false>();
        });
    if constexpr (kMarked) endMarked(task_);
  }

  SEQPAR_DEVICE void start(int i) const {
    const Record r = this->record(i);
    const ChainSm90Stage to = stage(i);
    const int begins = this->chunk(i).begins;
    this->waitEmpty(i);
    this->begins(i) = begins;
    if constexpr (kMarked) ptx::waitWordGpu(markOf(task_, this->batch_, this->head_, i), 1);
    ptx::mbarrierArriveExpectTx(this->full(i), 2 * kKeyBytes + 4 * kKeys + (ofState_ ? kSquareBytes : 0) +
                                                   (writesOut() ? kKeyBytes + kSquareBytes : 0));
    this->template load<kKeyBytes>(i, to.w.offset, r.w);
    if (ofState_) this->template load<kSquareBytes>(i, to.values.offset, r.written + int64_t{column_} * kRows);
    this->template load<kKeyBytes>(i, to.kOut.offset, r.kOut);
    this->template load<4 * kKeys>(i, to.total.offset, r.total);
    if (!writesOut()) return;
    this->template load<kKeyBytes>(i, to.qIn.offset, r.qIn);
    this->template load<kSquareBytes>(i, to.scores.offset, r.scores);
  }

  /// kOfState: of the state, not of the product of the chunks' matrices.
  template <bool kOfState, bool kOut>
  SEQPAR_DEVICE void steps() {
    startValues<kOfState>(0);
    SEQPAR_UNROLL
    for (auto& words : d_) words[0] = words[1] = words[2] = words[3] = 0;
    for (int i = 0; i < task_.count; ++i) step<kOfState, kOut>(i);
    if constexpr (!kOut) return;
    startOut(task_.count - 1);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out_);
    this->putOut(task_.count - 1, out_);
  }
  /// U of chunk i, and the flag of a sequence's start.
  template <bool kOfState>
  SEQPAR_DEVICE void startValues(int i) {
    this->waitFull(i);
    begins_ = this->begins(i);
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      if (!kOfState) break;
      uint32_t words[4];
      loadLeft<true>(words, stage(i).values, row_, k * kBlock, lane_);
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        float* const x = values_[2 * k + j / 2] + j % 2 * 2;
        x[0] = ptx::lowOf<T>(words[j]);
        x[1] = ptx::highOf<T>(words[j]);
      }
    }
  }
  template <bool kOfState, bool kOut>
  SEQPAR_DEVICE void step(int i) {
    lane_ = threadAgain() % 32;
    if (begins_ != 0) this->loadState(kOfState ? task_.initial : nullptr, this->sequenceIndex(this->chunk(i)));
    const ChainSm90Stage s = stage(i);
    uint32_t a[kKeys / kBlock][4];
    if constexpr (kOut) startOut(i > 0 ? i - 1 : 0);  // no condition: products would wait for each other
    this->roundState(a);
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys / kBlock; ++k) {
      warpgroup::subtractStep<T, Terms::AlongRows>(values_, a[k], operand(s.w.offset), kRows, k, kOfState || k > 0);
    }
    warpgroup::commit();
    if constexpr (kOut) {
      warpgroup::wait<1>();
      warpgroup::fenceOperand(out_);
      if (i > 0) this->putOut(i - 1, out_);
      warpgroup::arrive();
      SEQPAR_UNROLL
      for (int k = 0; k < kKeys / kBlock; ++k) {
        warpgroup::multiplyStep<T, Terms::AlongRows>(out_, a[k], operand(s.qIn.offset), kRows, k, k > 0);
      }
      warpgroup::commit();
    }
    const bool exact = ptx::voteAll(this->isExact(a));
    this->decayState(s.total, exact);
    warpgroup::wait<kOut ? 1 : 0>();
    warpgroup::fenceOperand(values_);
    if (!exact) repairValues<kOfState>(s, a);
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) roundTiles<T>(d_[k], values_[2 * k], values_[2 * k + 1]);
    const bool finite = ptx::voteAll(allFinite<T>(d_));
    typename Base::Elements before;
    if (!finite) this->copyState(before);
    exact_ = exact && finite;
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::Rows>(state_, d_[k], operand(s.kOut.offset), kRows, k, true);
    }
    warpgroup::commit();
    if (!kOut && kOfState && this->keeps()) this->share(i, s.w, a, s.values, d_);
    startValues<kOfState>(i + 1 < task_.count ? i + 1 : i);    // no condition: it would move values
    if constexpr (kOfState) warpgroup::fenceOperand(values_);  // they are computed before the wait
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    if constexpr (kOut) warpgroup::fenceOperand(out_);
    if (!exact_) {
      this->storeOperands(this->roundedState(), a);
      this->storeOperands(this->roundedValues(), d_);
    }
    if (!finite) {
      this->recomputeState(before, [&](int c, int v) {
        return sumForgetting<T, false, true>(s.kOut, c, this->roundedValues(), v, 0, kRows);
      });
    }
    if constexpr (!kOut) this->release(i);
  }
  template <bool kOfState>
  SEQPAR_DEVICE void repairValues(const ChainSm90Stage& s, const uint32_t (&a)[kKeys / kBlock][4]) {
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out_);
    this->storeOperands(this->roundedState(), a);
    recompute(values_, row_, 0, [&](int v, int t) {
      const float sum = sumForgetting<T, true, true>(s.w, t, this->roundedState(), v, 0, kKeys);
      return kOfState ? ptx::lowOf<T>(*s.values.at(v, t)) - sum : -sum;
    });
  }
  /// Adds the outputs of chunk i through scores; if its operands are finite, the products stay in flight.
  SEQPAR_DEVICE void startOut(int i) {
    const ChainSm90Stage s = stage(i);
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::AlongRows>(out_, d_[k], operand(s.scores.offset), kRows, k, true);
    }
    warpgroup::commit();
    if (exact_) return;
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out_);
    recompute(out_, row_, 0, [&](int v, int t) {
      return sumForgetting<T, true, true>(s.qIn, t, this->roundedState(), v, 0, kKeys) +
             sumForgetting<T, true, true>(s.scores, t, this->roundedValues(), v, 0, t / kBlock * kBlock + kBlock);
    });
  }
  /// The helper: copies the outputs of chunk i.
  SEQPAR_DEVICE void copyOut(int i) const {
    const Chunk& chunk = this->chunk(i);
    const bool isBox = rows_.storesBoxes && chunk.rows == kRows;
    const int token = static_cast<int>(chunk.first);  // loaded before the wait
    ptx::barrierSync<kSm90OutRounded, Base::kBoth>();
    if (isBox) {
      if (Base::isKeeper()) this->storeBox(rows_.outputs, token);
      ptx::syncwarp();
    } else {
      storeTensor<kColumns, kRows, ChainSm90Memory::kAdvanceHelpers>(
          {task_.out, this->batch_, chunk, this->head_, column_, task_.dv}, 0, this->outputs(),
          threadAgain() - warpgroup::kThreads);
    }
    if (i + 1 < task_.count) return ptx::barrierArrive<kSm90Read, Base::kBoth>();
    if (Base::isKeeper()) ptx::cpAsyncBulkWaitGroup();
  }
  /// The helper: copies the state before chunk i and its values.
  SEQPAR_DEVICE void keep(int i) const {
    if (!Base::isKeeper()) return;
    const Record r = this->record(i);
    this->startKeeping(i, r.state, stage(i).w, r.values, stage(i).values);
    this->finishKeeping(i);
  }

  const RowsTask& rows_;
  int begins_ = 0;                 ///< Chunk::begins of the chain's next chunk
  bool exact_ = true;              ///< whether the latest chunk's operands are finite
  uint32_t d_[kRows / kBlock][4];  ///< D, rounded
  float out_[kRows / 8][4];        ///< of the transpose
};

}  // namespace seqpar::attn::delta::half
