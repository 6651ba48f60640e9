// The states of a window's chunks for 16-bit tensors on sm_90a, and the outputs (chain_sm90.h).
#pragma once

#include "kernels/attn/linear/delta/half/chain_sm90.h"

namespace seqpar::attn::delta::half {

template <class T>
class AdvanceSm90 : ChainSm90<T> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { AdvanceSm90(task).window(); }

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

  SEQPAR_DEVICE explicit AdvanceSm90(const Task& task) : Base(task) {}

  SEQPAR_DEVICE bool writesOut() const { return task_.writesOut && ofState_; }

  SEQPAR_DEVICE void window() {
    ptx::griddepcontrolLaunchDependents();  // Task::overlaps: its CTAs get the SMs that these leave idle
    this->placeBarriers(0);
    this->runRoles([&](int i) { start(i); }, [&](int i) { help(i); },
                   [&] {
                     if (ofState_ && task_.checkpoint != nullptr) this->storeState(task_.checkpoint, this->index());
                     begins_ = this->chunk(0).begins;
                     for (int i = 0; i < task_.count; ++i) ofState_ ? step<true>(i) : step<false>(i);
                   });
  }

  SEQPAR_DEVICE void start(int i) const {
    const Record r = this->record(i);
    const ChainSm90Stage to = stage(i);
    this->waitEmpty(i);
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
  template <bool kOfState>
  SEQPAR_DEVICE void step(int i) {
    lane_ = threadAgain() % 32;
    if (begins_ != 0) this->loadState(kOfState ? task_.initial : nullptr, this->sequenceIndex(this->chunk(i)));
    begins_ = i + 1 < task_.count ? this->chunk(i + 1).begins : 0;  // now, because its use would wait for it
    const ChainSm90Stage s = stage(i);
    const auto rounded = this->roundedState();
    const auto values = this->roundedValues();
    const ptx::AccumulatorLayout layout{lane_};
    uint32_t a[kKeys / kBlock][4], d[kRows / kBlock][4];  // d: U, then D
    float read[kRows / 8][4];                             // (W S)^T
    this->roundState(a);
    this->waitFull(i);
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::AlongRows>(read, a[k], operand(s.w.offset), kRows, k, k > 0);
    }
    warpgroup::commit();
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        d[k][j] = kOfState ? s.values.pair(layout.row(row_, 2 * j), layout.column(k * kBlock + j / 2 * 8)) : 0;
      }
    }
    this->shareState(i, a, writesOut());
    warpgroup::wait<0>();
    warpgroup::fenceOperand(read);
    if (!ptx::voteAll(allFinite(read))) {
      recompute(read, row_, 0,
                [&](int v, int t) { return sumForgetting<T, true, true>(s.w, t, rounded, v, 0, kKeys); });
    }
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float* const x = read[2 * k + j / 2] + j % 2 * 2;
        d[k][j] = ptx::pack<T>(ptx::lowOf<T>(d[k][j]) - x[0], ptx::highOf<T>(d[k][j]) - x[1]);
      }
    }
    float added[kTiles][4];
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      warpgroup::multiplyStep<T, Terms::Rows>(added, d[k], operand(s.kOut.offset), kRows, k, k > 0);
    }
    warpgroup::commit();
    this->shareValues(d, writesOut());
    warpgroup::wait<0>();
    warpgroup::fenceOperand(added);
    this->update(s.total, added,
                 [&](int c, int v) { return sumForgetting<T, false, true>(s.kOut, c, values, v, 0, kRows); });
    this->release(i);
  }

  SEQPAR_DEVICE void help(int i) {
    lane_ = threadAgain() % 32;
    const ChainSm90Stage s = stage(i);
    const Record r = this->record(i);
    const auto rounded = this->roundedState();
    const auto values = this->roundedValues();
    const int helper = threadAgain() - warpgroup::kThreads;
    float out[kRows / 8][4];
    this->waitFull(i);
    ptx::barrierSync<kSm90StateRounded, Base::kBoth>();
    if (this->keeps()) {
      storeTile<kColumns, warpgroup::kThreads>(r.state + int64_t{column_} * kKeys, rounded, helper);
    }
    if (writesOut()) {
      warpgroup::arrive();
      multiplyTerms<T, Terms::AlongRows, Terms::AlongRows, kKeys>(out, operand(s.qIn.offset), operand(rounded.offset),
                                                                  false);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(out);
    }
    ptx::barrierSync<kSm90ValuesRounded, Base::kBoth>();
    if (this->keeps()) {
      storeImage<kSquareBytes, warpgroup::kThreads>(r.written + int64_t{column_} * kRows, values.offset, helper);
    }
    if (writesOut()) {
      warpgroup::arrive();
      multiplyTerms<T, Terms::AlongRows, Terms::AlongRows, kRows>(out, operand(s.scores.offset), operand(values.offset),
                                                                  true);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(out);
      if (!ptx::voteAll(allFinite(out))) {
        recompute(out, row_, 0, [&](int t, int v) {
          return sumForgetting<T, true, true>(s.qIn, t, rounded, v, 0, kKeys) +
                 sumForgetting<T, true, true>(s.scores, t, values, v, 0, row_ + kBlock);
        });
      }
    }
    this->finishReading(i);
    this->release(i);
    if (!writesOut()) return;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      storeTiles<T>({task_.out, this->batch_, this->chunk(i), this->head_, column_ + 32 * n, task_.dv}, row_,
                    reinterpret_cast<const float(&)[4][4]>(out[4 * n]));
    }
  }

  int begins_ = 0;  ///< Chunk::begins of the chain's next chunk
};

}  // namespace seqpar::attn::delta::half
