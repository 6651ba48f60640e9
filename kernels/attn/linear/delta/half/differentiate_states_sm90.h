// The parts of Differentiate with states and values on sm_90a, decays of channels: products by warpgroups, each with a
// quarter of the columns and channels, and record images by bulk copies.
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/attn/linear/delta/half/differentiate_states.h"
#include "kernels/attn/linear/delta/half/panels_sm90.h"

namespace seqpar::attn::delta::half {

/// The mbarrier of a stage: its images have arrived.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE uint32_t Differentiate<T, kChannel, kWgmma>::full(int stage) const {
  return ptx::sharedAddress(ptx::sharedMemory()) + static_cast<uint32_t>(memory_.full + 8 * stage);
}
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::placeBarriers() const {
  if (threadAgain() == 0) {
    ptx::mbarrierInit(full(0), 1);
    ptx::mbarrierInit(full(1), 1);
    ptx::fenceMbarrierInit();
  }
  ptx::syncthreads();
}
/// Orders ordinary stores in place of stages before copies of the next head.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::fenceStages() const {
  warpgroup::fenceProxyAsync();
}
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::startImages(int first, const Stage& to) const {
  if (threadAgain() != kAll - 32) return;  // of a warp that loads no gates
  const Record r = record();
  const uint32_t barrier = full(first / kColumns % 2);
  ptx::mbarrierArriveExpectTx(barrier, (first == 0 ? 3 : 2) * kSquareBytes + 2 * kKeyBytes);
  const auto copy = [&](int at, const uint16_t* from, int bytes) {
    ptx::cpAsyncBulkLoad(ptx::sharedMemory() + at, from, bytes, barrier);
  };
  if (first == 0) copy(memory_.inverse, r.inverse, kSquareBytes);
  copy(to.dWritten.offset, r.dWritten + int64_t{first} * kRows, kSquareBytes);
  copy(to.written.offset, r.values + int64_t{first} * kRows, kSquareBytes);
  copy(to.state.offset, r.state + int64_t{first} * kKeys, kKeyBytes);
  copy(to.dState.offset, r.dState + int64_t{first} * kKeys, kKeyBytes);
}

/// `values`: those of the block; then of the next one. No function is called while products are in flight: ptxas would
/// serialize them.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughColumnsSm90(int first, const Stage& s, ValuePairs& values,
                                                                          float (&boundary)[2]) {
  const int column = quarter_ * kBlock, stage = first / kColumns % 2;
  const auto channels = [&](const KeyPanels<kColumns>& states) {  // the warpgroup's 32 of rows of 64
    return operand(states.offset + quarter_ / 2 * states.kPanelBytes + quarter_ % 2 * 64);
  };
  const auto written = operand(s.written.offset + 2 * column);
  ptx::cpAsyncWaitGroup<1>();
  warpgroup::fenceProxyAsync();
  ptx::syncthreads();
  ptx::mbarrierWaitParity(full(stage), phases_ >> stage & 1);
  phases_ ^= 1 << stage;
  float c[2][4];
  warpgroup::arrive();
  multiplyTerms<T, Terms::Rows, Terms::AlongRows, kRows>(
      c, operand(memory_.inverse), operand(s.dWritten.offset + column * SquareRows::kRowBytes), false);
  warpgroup::commit();
  warpgroup::wait<0>();
  warpgroup::fenceOperand(c);
  repairValues(c, s.dWritten);
  finishValues(values, first);
  warpgroup::arrive();
  multiplyTerms<T, Terms::AlongRows, Terms::Rows, kColumns>(dq_, operand(s.dOut.offset), channels(s.state), true);
  multiplyTerms<T, Terms::Rows, Terms::Rows, kColumns>(dColumn_, operand(s.written.offset), channels(s.dState), true);
  multiplyTerms<T, Terms::AlongRows, Terms::Rows, kColumns>(ofScores_, operand(s.dOut.offset), written, true);
  warpgroup::commit();
  storeValues(c, values, first);
  warpgroup::fenceProxyAsync();
  ptx::syncthreads();
  warpgroup::arrive();
  multiplyTerms<T, Terms::AlongRows, Terms::Rows, kColumns>(dRow_, operand(memory_.dX), channels(s.state), true);
  multiplyTerms<T, Terms::AlongRows, Terms::Rows, kColumns>(ofKeys_, operand(memory_.dX), written, true);
  warpgroup::commit();
  addBoundary(boundary, s, threadAgain() % 32);
  warpgroup::wait<0>();
  warpgroup::fenceOperand(dq_);
  warpgroup::fenceOperand(dRow_);
  warpgroup::fenceOperand(dColumn_);
  warpgroup::fenceOperand(ofScores_);
  warpgroup::fenceOperand(ofKeys_);
  const SquareRows dValues{memory_.dValues};
  storeTensor<kColumns, kRows, kAll>({task_.dv_, batch_, chunk_, head_, first, task_.dv}, 0, dValues, threadAgain());
  if (first + kColumns < columns_) loadValues(values, first + kColumns);
  smallBetas(first, s);
  ptx::syncthreads();
  startBlock(first + 2 * kColumns);
}

}  // namespace seqpar::attn::delta::half
