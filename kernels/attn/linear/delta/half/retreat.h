// The gradients of the states of a window's chunks for 16-bit tensors (chain.h).
#pragma once

#include "kernels/attn/linear/delta/half/chain.h"

namespace seqpar::attn::delta::half {

/// With Y the gradient of the state after the chunk, dO that of the outputs:
///     dD = scores^T dO + kOut Y        Y = total Y + qIn^T dO - W^T dD
template <class T, int kGroups>
class Retreat : Chain<T, kGroups> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Retreat(task).window(); }

 private:
  using Base = Chain<T, kGroups>;
  using Base::kWidth, Base::kAll, Base::kParts, Base::kChainWarps, Base::kOwn, Base::kOwnTokens;
  using Base::task_, Base::state_, Base::warp_, Base::memory_, Base::lane_, Base::helper_, Base::ofState_,
      Base::column_;

  SEQPAR_DEVICE explicit Retreat(const Task& task) : Base(task) {}

  SEQPAR_DEVICE void start(int n) const {
    if (n >= 0) {
      const Record r = this->record(n);
      const auto to = chainStage(n);
      startImage<kKeyBytes, kHelpers>(to.w.offset, r.w, helper_);
      startImage<kKeyBytes, kHelpers>(to.kOut.offset, r.kOut, helper_);
      if (ofState_) {
        startImage<kKeyBytes, kHelpers>(to.qIn.offset, r.qIn, helper_);
        startImage<kSquareBytes, kHelpers>(to.scores.offset, r.scores, helper_);
        startTensor<kWidth, kHelpers>(
            to.values, {task_.dOut, this->batch_, this->chunk(n), this->head_, column_, task_.dv}, helper_);
      }
      this->startTotal(to.total, r.total);
    }
    ptx::cpAsyncCommitGroup();
  }

  SEQPAR_DEVICE void window() {
    if (this->inChain()) {
      this->loadState(this->before(), this->index());
    } else {
      for (int n = 0; n + 1 < kChainStages; ++n) start(task_.count - 1 - n);
    }
    for (int n = task_.count; n-- > 0;) {
      if (this->inChain()) {
        ptx::syncthreads();
        step(n);
      } else {
        ptx::cpAsyncWaitGroup<kChainStages - 2>();
        ptx::syncthreads();
        start(n - kChainStages + 1);
        help(n);
      }
    }
    if (this->inChain()) this->storeState(this->after(), this->index());
    if (!this->inChain()) ptx::cpAsyncWaitGroup<0>();
  }

  SEQPAR_DEVICE void step(int n) {
    if constexpr (kParts > 1) lane_ = threadAgain() % 32;
    const Chunk& chunk = task_.chunks[task_.first + n];
    const auto stage = chainStage(n);
    const KeyRows rounded = memory_.state;
    const SquareRows values = memory_.values;
    const int row = this->row(), token = this->firstToken(), channel = this->firstChannel();
    uint32_t a[kKeys / kBlock][4], g[kRows / kBlock][4], d[kRows / kBlock][4];
    this->roundState(a);
    float ofValues[kOwnTokens / 8][4] = {};  // dD^T
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys / kBlock; ++k) {
      accumulate<T, true>(ofValues, a[k], stage.kOut, token, k * kBlock, 0, kOwnTokens / 8, lane_);
    }
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      if (ofState_) {
        loadLeft<false>(g[k], stage.values, row, k * kBlock, lane_);
        accumulate<T, false>(ofValues, g[k], stage.scores, token, k * kBlock, 0, 2 * k + 2 - token / 8, lane_);
      }
    }
    if (!ptx::voteAll(allFinite(ofValues))) {
      recompute(ofValues, row, token, [&](int v, int t) {
        const float sum = sumForgetting<T, true, true>(stage.kOut, t, rounded, v, 0, kKeys);
        return ofState_
                   ? sum + sumForgetting<T, false, false>(stage.scores, t, stage.values, v, t / kBlock * kBlock, kRows)
                   : sum;
      });
    }
    SEQPAR_UNROLL
    for (int k = 0; k < kOwnTokens / kBlock; ++k) roundTiles<T>(d[k], ofValues[2 * k], ofValues[2 * k + 1]);
    this->shareValues(values, d);
    float added[kOwn / 8][4] = {};
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      if (ofState_) accumulate<T, false>(added, g[k], stage.qIn, channel, k * kBlock, 0, kOwn / 8, lane_);
      const uint32_t negated[4] = {d[k][0] ^ kSigns, d[k][1] ^ kSigns, d[k][2] ^ kSigns, d[k][3] ^ kSigns};
      accumulate<T, false>(added, negated, stage.w, channel, k * kBlock, 0, kOwn / 8, lane_);
    }
    this->update(stage.total, added, [&](int c, int v) {
      const float sum = -sumForgetting<T, false, true>(stage.w, c, values, v, 0, kRows);
      return ofState_ ? sum + sumForgetting<T, false, false>(stage.qIn, c, stage.values, v, 0, kRows) : sum;
    });
    if (chunk.begins != 0) {
      if (ofState_ && task_.dInitial != nullptr) this->storeState(task_.dInitial, this->sequenceIndex(chunk));
      this->loadState(nullptr, 0);
    }
  }
  static constexpr uint32_t kSigns = 0x80008000U;

  SEQPAR_DEVICE void help(int n) {
    if constexpr (kParts > 1) lane_ = threadAgain() % 32;
    const Record r = this->record(n);
    ptx::barrierSync<kStateRounded, kAll>();
    if (this->keeps()) storeStates<kWidth, kHelpers>(r.dState, column_, memory_.state, helper_);
    ptx::barrierSync<kValuesRounded, kAll>();
    if (this->keeps())
      storeImage<2 * kWidth * kRows, kHelpers>(r.dWritten + int64_t{column_} * kRows, memory_.values.offset, helper_);
  }
};

}  // namespace seqpar::attn::delta::half
