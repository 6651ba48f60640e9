// The steps of the delta rule's passes with the kernels of GPUs on an emulated CTA, for tests of these passes.
#pragma once

#include "attn/linear/device/delta_windows.h"
#include "kernels/attn/linear/delta/chain.h"
#include "kernels/attn/linear/delta/differentiate.h"
#include "kernels/attn/linear/delta/fold.h"
#include "kernels/attn/linear/delta/half/advance.h"
#include "kernels/attn/linear/delta/half/advance_rows_sm90.h"
#include "kernels/attn/linear/delta/half/advance_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_channels_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_mild.h"
#include "kernels/attn/linear/delta/half/differentiate_states_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_sums.h"
#include "kernels/attn/linear/delta/half/differentiate_sums_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_tokens.h"
#include "kernels/attn/linear/delta/half/differentiate_tokens_sm90.h"
#include "kernels/attn/linear/delta/half/prepare_channels.h"
#include "kernels/attn/linear/delta/half/prepare_sm90.h"
#include "kernels/attn/linear/delta/half/prepare_turns_sm90.h"
#include "kernels/attn/linear/delta/half/retreat.h"
#include "kernels/attn/linear/delta/half/retreat_rows_sm90.h"
#include "kernels/attn/linear/delta/half/retreat_sm90.h"
#include "kernels/attn/linear/delta/prepare.h"
#include "unit/attn/linear_passes_check.h"

namespace seqpar::attn::linear::test {

/// Each term of a product of 16-bit tensors is rounded at most 16 times, by half an ulp: rows, scores, T, W, U, D,
/// states and their gradients are operands of 16 bits.
inline double roundingsOf(int type) {
  return type == seqparFloat32 ? 0 : 16 * (type == seqparBfloat16 ? 0x1p15 : 0x1p13);
}

inline Shard withReserve(Shard shard, bool reserves) {
  shard.reserves = reserves;
  return shard;
}

/// Steps of the delta rule on an emulated CTA.
class EmulatedSteps final : public DeltaSteps {
 public:
  /// `sm90`: kernels with wgmma, for steps that have one.
  /// `sms`: of the GPU, on which steps overlap and chains run in segments if possible; 0: they do not.
  explicit EmulatedSteps(bool sm90 = false, int sms = 0) : sm90_(sm90), sms_(sms) {}

  void run(delta::Step step, const delta::Task& task, void*) override {
    if (sm90_ && task.half && delta::half::hasSm90(step, task)) {
      return emulate(delta::half::ctasOfSm90(step, task), delta::half::threadsOfSm90(step, task),
                     delta::half::sharedBytesSm90(step, task),
                     task.type == seqparBfloat16 ? sm90Kernel<Bf16>(step, task) : sm90Kernel<Fp16>(step, task), task);
    }
    if (task.half) {
      return emulate(delta::half::ctasOf(step, task), delta::half::threadsOf(step, task),
                     delta::half::sharedBytes(step, task.type, task.width > 1),
                     task.type == seqparBfloat16 ? halfKernel<Bf16>(step, task) : halfKernel<Fp16>(step, task), task);
    }
    const auto shared = static_cast<size_t>(delta::sharedNumbers(step, task)) * sizeof(float);
    emulate(delta::blocksOf(step, task), delta::kThreads, static_cast<int>(shared), kernel(step), task);
  }
  void transpose(float* to, const float* from, int64_t count, int size, void*) override { set(to, from, count, size); }
  void identity(float* to, int64_t count, int size, void*) override { set(to, nullptr, count, size); }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void fold(const delta::FoldTask& task, void*) override {
    emulator::run(static_cast<int>(delta::ctasOfFold(task)), delta::kFoldThreads, delta::kFoldBytes, 1,
                  [&] { delta::FoldStates::run(task); });
  }
  int sms() const override { return sm90_ ? sms_ : 0; }
  bool readsRows(const delta::Task& task) const override {
    return sm90_ && task.half && delta::half::mayReadRows(task);
  }
  int overlappingSms(const delta::Task& task) const override { return sm90_ && delta::half::mayMark(task) ? sms_ : 0; }

 private:
  using Kernel = void (*)(const delta::Task&);

  static void emulate(int64_t blocks, int threads, int shared, Kernel kernel, const delta::Task& task) {
    emulator::run(static_cast<int>(blocks), threads, static_cast<size_t>(shared), 1, [&] { kernel(task); });
  }
  static Kernel kernel(delta::Step step) {
    switch (step) {
      case delta::Step::Prepare:
        return &delta::Prepare::run;
      case delta::Step::Advance:
        return &delta::Advance::run;
      case delta::Step::Retreat:
        return &delta::Retreat::run;
      default:
        return &delta::Differentiate::run;
    }
  }
  template <class T>
  static Kernel halfKernel(delta::Step step, const delta::Task& task) {
    const bool ofChannels = task.width > 1, isWide = delta::half::chainWidth(task) == delta::half::kColumns;
    switch (step) {
      case delta::Step::Prepare:
        return ofChannels ? &delta::half::Prepare<T, true>::run : &delta::half::Prepare<T, false>::run;
      case delta::Step::Advance:
        return isWide ? &delta::half::Advance<T, 4>::run : &delta::half::Advance<T, 2>::run;
      case delta::Step::Retreat:
        return isWide ? &delta::half::Retreat<T, 4>::run : &delta::half::Retreat<T, 2>::run;
      default:
        return ofChannels ? &delta::half::Differentiate<T, true>::run : &delta::half::Differentiate<T, false>::run;
    }
  }
  template <class Chain, delta::Step kStep>
  static void runMapped(const delta::Task& task) {
    delta::half::RowsTask rows;
    delta::half::encodeRows(rows, task, kStep);
    Chain::run(rows);
  }
  template <class T>
  static Kernel rowsKernel(delta::Step step) {
    if (step == delta::Step::Prepare) return &delta::half::PrepareSm90<T>::run;
    if (step == delta::Step::Retreat) return &runMapped<delta::half::RetreatRowsSm90<T>, delta::Step::Retreat>;
    return &runMapped<delta::half::AdvanceRowsSm90<T>, delta::Step::Advance>;
  }
  template <class T>
  static Kernel sm90Kernel(delta::Step step, const delta::Task& task) {
    if (task.readsRows && step != delta::Step::Differentiate) return rowsKernel<T>(step);
    switch (step) {
      case delta::Step::Prepare:
        return &delta::half::prepareTurns<T>;
      case delta::Step::Advance:
        return task.marks == nullptr ? &runMapped<delta::half::AdvanceSm90<T>, delta::Step::Advance>
                                     : &runMapped<delta::half::AdvanceSm90<T, true>, delta::Step::Advance>;
      case delta::Step::Retreat:
        return &delta::half::RetreatSm90<T>::run;
      case delta::Step::Differentiate:
        break;
    }
    if (delta::half::isWide(step, task)) return &delta::half::Differentiate<T, true, true>::run;
    const auto choose = [&]<bool kShared, bool kChannel>() -> Kernel {
      return delta::half::paddedColumns(task) > delta::half::kColumns
                 ? &delta::half::DifferentiateSm90<T, true, kShared, kChannel>::run
                 : &delta::half::DifferentiateSm90<T, false, kShared, kChannel>::run;
    };
    const bool shared = task.heads > task.keyHeads;
    if (task.width > 1)
      return shared ? choose.template operator()<true, true>() : choose.template operator()<false, true>();
    return shared ? choose.template operator()<true, false>() : choose.template operator()<false, false>();
  }
  static void set(float* to, const float* from, int64_t count, int size) {
    for (int64_t i = 0; i < count * size * size; ++i) to[i] = delta::squareElement(from, i, size);
  }

  const bool sm90_;
  const int sms_;
};

/// `sms`: as in EmulatedSteps.
inline Maker emulated(bool sm90, size_t records, int partChunks = 16, bool reserves = false, int sms = 0) {
  return [=](const Shard& shard, Exec& exec) {
    return std::make_unique<DeltaWindows>(withReserve(shard, reserves), exec,
                                          std::make_unique<EmulatedSteps>(sm90, sms), records, fitsHalf(shard),
                                          partChunks);
  };
}

}  // namespace seqpar::attn::linear::test
