// The states of a window's chunks for 16-bit tensors, and the outputs (chain.h).
#pragma once

#include "kernels/attn/linear/delta/half/chain.h"

namespace seqpar::attn::delta::half {

template <class T, int kGroups>
class Advance : Chain<T, kGroups> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Advance(task).window(); }

 private:
  using Base = Chain<T, kGroups>;
  using Base::kWidth, Base::kAll, Base::kParts, Base::kChainWarps, Base::kOwn, Base::kOwnTokens;
  using Base::task_, Base::state_, Base::warp_, Base::memory_, Base::lane_, Base::helper_, Base::ofState_,
      Base::column_;

  SEQPAR_DEVICE explicit Advance(const Task& task) : Base(task) {}

  SEQPAR_DEVICE bool writesOut() const { return task_.writesOut && ofState_; }

  SEQPAR_DEVICE void start(int n) const {
    if (n < task_.count) {
      const Record r = this->record(n);
      const auto to = chainStage(n);
      startImage<kKeyBytes, kHelpers>(to.w.offset, r.w, helper_);
      startImage<kKeyBytes, kHelpers>(to.kOut.offset, r.kOut, helper_);
      if (ofState_) {
        startImage<2 * kWidth * kRows, kHelpers>(to.values.offset, r.written + int64_t{column_} * kRows, helper_);
      }
      if (writesOut()) {
        startImage<kKeyBytes, kHelpers>(to.qIn.offset, r.qIn, helper_);
        startImage<kSquareBytes, kHelpers>(to.scores.offset, r.scores, helper_);
      }
      this->startTotal(to.total, r.total);
    }
    ptx::cpAsyncCommitGroup();
  }

  SEQPAR_DEVICE void window() {
    if (this->inChain()) {
      this->loadState(this->before(), this->index());
    } else {
      for (int n = 0; n + 1 < kChainStages; ++n) start(n);
    }
    for (int n = 0; n < task_.count; ++n) {
      if (this->inChain()) {
        ptx::syncthreads();
        step(n);
      } else {
        ptx::cpAsyncWaitGroup<kChainStages - 2>();
        ptx::syncthreads();
        start(n + kChainStages - 1);
        help(n);
      }
    }
    if (this->inChain()) this->storeState(this->after(), this->index());
    if (!this->inChain()) ptx::cpAsyncWaitGroup<0>();
  }

  SEQPAR_DEVICE void step(int n) {
    if constexpr (kParts > 1) lane_ = threadAgain() % 32;
    const Chunk& chunk = task_.chunks[task_.first + n];
    if (chunk.begins != 0) this->loadState(ofState_ ? task_.initial : nullptr, this->sequenceIndex(chunk));
    const auto stage = chainStage(n);
    const KeyRows rounded = memory_.state;
    const SquareRows values = stage.values;  // U, then D in place of the thread's elements
    const int row = this->row(), token = this->firstToken(), channel = this->firstChannel();
    const ptx::AccumulatorLayout layout{lane_};
    const int g = layout.row(row), p = layout.column(token);
    uint32_t a[kKeys / kBlock][4], d[kRows / kBlock][4];
    this->roundState(a);
    float read[kOwnTokens / 8][4] = {};  // (W S)^T
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys / kBlock; ++k) {
      accumulate<T, true>(read, a[k], stage.w, token, k * kBlock, 0, kOwnTokens / 8, lane_);
    }
    if (!ptx::voteAll(allFinite(read))) {
      recompute(read, row, token,
                [&](int v, int t) { return sumForgetting<T, true, true>(stage.w, t, rounded, v, 0, kKeys); });
    }
    SEQPAR_UNROLL
    for (int k = 0; k < kOwnTokens / kBlock; ++k) {
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* const x = read[2 * k + i / 2] + i % 2 * 2;
        const uint32_t u = ofState_ ? stage.values.pair(g + i % 2 * 8, k * kBlock + i / 2 * 8 + p) : 0;
        d[k][i] = ptx::pack<T>(ptx::lowOf<T>(u) - x[0], ptx::highOf<T>(u) - x[1]);
      }
    }
    this->shareValues(values, d);
    float added[kOwn / 8][4] = {};
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      accumulate<T, false>(added, d[k], stage.kOut, channel, k * kBlock, 0, kOwn / 8, lane_);
    }
    this->update(stage.total, added,
                 [&](int c, int v) { return sumForgetting<T, false, true>(stage.kOut, c, values, v, 0, kRows); });
  }

  SEQPAR_DEVICE void help(int n) {
    if constexpr (kParts > 1) lane_ = threadAgain() % 32;
    const Record r = this->record(n);
    ptx::barrierSync<kStateRounded, kAll>();
    const int row = (warp_ - kChainWarps) * kBlock;
    float out[kWidth / 8][4] = {};
    const auto stage = chainStage(n);
    if (this->keeps()) storeStates<kWidth, kHelpers>(r.state, column_, memory_.state, helper_);
    if (writesOut()) {
      SEQPAR_UNROLL
      for (int k = 0; k < kKeys; k += kBlock) {
        uint32_t q[4];
        loadLeft<true>(q, stage.qIn, row, k, lane_);
        accumulate<T, true>(out, q, memory_.state, 0, k, 0, kWidth / 8, lane_);
      }
    }
    ptx::barrierSync<kValuesRounded, kAll>();
    if (this->keeps())
      storeImage<2 * kWidth * kRows, kHelpers>(r.values + int64_t{column_} * kRows, stage.values.offset, helper_);
    if (!writesOut()) return;
    for (int k = 0; k <= row; k += kBlock) {
      uint32_t p[4];
      loadLeft<true>(p, stage.scores, row, k, lane_);
      accumulate<T, true>(out, p, stage.values, 0, k, 0, kWidth / 8, lane_);
    }
    if (!allFinite(out)) {
      recompute(out, row, 0, [&](int t, int v) {
        return sumForgetting<T, true, true>(stage.qIn, t, memory_.state, v, 0, kKeys) +
               sumForgetting<T, true, true>(stage.scores, t, stage.values, v, 0, row + kBlock);
      });
    }
    const SquareRows to = memory_.outputs;
    SEQPAR_UNROLL
    for (int k = 0; k < kGroups; ++k) {
      uint32_t pairs[4];
      roundTiles<T>(pairs, out[2 * k], out[2 * k + 1]);
      storeLeft(to, row, k * kBlock, pairs, lane_);
    }
    ptx::syncwarp();
    storeTensor<kWidth, kBlock, 32>({task_.out, this->batch_, this->chunk(n), this->head_, column_, task_.dv}, row,
                                    SquareRows{to.offset + row * to.kRowBytes}, ptx::thread() % 32);
    ptx::syncwarp();
  }
};

}  // namespace seqpar::attn::delta::half
