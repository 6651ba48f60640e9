// The consumer warpgroups of pass 3 (outputs_sm90.cuh) for one decay of all channels.
#pragma once

#include "kernels/attn/linear/forward_sm90/outputs_consumer_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/state_before_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

template <class T, Heads H>
using UniformShared =
    std::conditional_t<H == Heads::Plain, OutputsSharedFor<T>, FactorShared<H == Heads::Pair ? 2 : 1>>;

template <class T, Heads H, bool Wide>
class UniformConsumer : OutputsConsumer<T, UniformShared<T, H>, H == Heads::Pair, H != Heads::Pair && !Wide, Wide> {
 public:
  static constexpr bool kPair = H == Heads::Pair;
  using Base = OutputsConsumer<T, UniformShared<T, H>, kPair, !kPair && !Wide, Wide>;
  using Base::Base;
  using typename Base::Layout;

  SEQPAR_DEVICE int run(const Sweep& given, int first, const Pipeline<Layout::kStages>& pipeline) {
    Sweep item = given;
    if (kPair) item.head += which_;
    char* const outTile = shared_ + Layout::kOut + which_ * kTileBytes;
    if (Wide && !item.opens) {
      this->resume(item);
    } else {
      StateBefore(kernel_.pass, outTile, which_, this->half()).make(item, state_);
    }
    const auto multiply = [&](char* stage, const Chunk& chunk, int running, bool) {
      if constexpr (kRaises) {
        multiplyRaised(stage, item, chunk, running);
      } else if (decays(stage)[kChunk] == 0) {
        multiplyChunk<true>(stage, item, chunk, running);
      } else {
        multiplyChunk<false>(stage, item, chunk, running);
      }
    };
    const int count = this->each(item, first, pipeline, multiply);
    if (Wide && !item.closes) {
      this->keepState(item);
      return count;
    }
    if (this->wantsFinal(item)) putFinal(item);  // earlier, for a lead
    if (thread_ == 0) ptx::cpAsyncBulkWaitGroup();
    ptx::griddepcontrolWait();  // the next kernel only waits for this one
    return count;
  }

 private:
  using Base::kernel_, Base::problem_, Base::shared_, Base::which_, Base::thread_, Base::lane_, Base::state_;
  using Base::vectors, Base::syncGroup, Base::roundTimes, Base::operands, Base::addScores, Base::put,
      Base::awaitOutTile, Base::finish, Base::putFinal, Base::kRaises, Base::stateScale, Base::inverses,
      Base::eachOfQueries, Base::lower;
  /// Of the consumer's head: 2^L of each token, then 2^Lend.
  SEQPAR_DEVICE const float* decays(const char* stage) const { return vectors(stage, kPair ? which_ : 0); }
  template <bool forgets>
  SEQPAR_DEVICE void multiplyChunk(char* stage, const Sweep& item, const Chunk& chunk, int running) {
    if constexpr (H != Heads::Plain) {
      multiplyFactors<forgets>(stage, item, chunk, running);
    } else {
      multiplyUniform<forgets>(stage, item, chunk, running);
    }
  }

  /// One decay for all channels: keys contain their decays to the chunk's end; the state's contribution to outputs is
  /// multiplied by the decays from the chunk's start. `forgets`: the decay of the whole chunk is 0; discarded elements
  /// may be non-finite.
  template <bool forgets>
  SEQPAR_DEVICE void multiplyUniform(char* stage, const Sweep& item, const Chunk& chunk, int running) {
    const auto with = operands(stage);
    Shape::Operand a;
    float out[32], within[32];
    roundTimes(a, 1);
    const float decay = decays(stage)[kChunk];
#pragma unroll
    for (int i = 0; i < Shape::kStateElements; ++i) state_[i] = forgets ? 0 : state_[i] * decay;
    warpgroup::fenceOperand(state_);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      warpgroup::multiply<T, Terms::AlongRows>(out, a[step], with.queries + channelStep(step), step > 0);
    }
    addScores(within, with, false);
    warpgroup::commit();
    this->template addKeys<0>(with);
    this->template addKeys<1>(with);
    this->template addKeys<2>(with);
    this->template addKeys<3>(with);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(out);
    warpgroup::fenceOperand(within);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(decays(stage) + 8 * j + 2 * (lane_ % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 == 0 ? by.x : by.y;
        within[4 * j + e] += forgets && factor == 0 ? 0 : out[4 * j + e] * factor;
      }
    }
    awaitOutTile();
    put(within, item, chunk, running);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    finish(item, chunk, running);
  }

  /// The same, for any decay, with powers of 2 of the rounded state and of scores, which the state's term is multiplied
  /// by before they are added. One function, because two have their accumulators in different registers.
  SEQPAR_DEVICE void multiplyRaised(char* stage, const Sweep& item, const Chunk& chunk, int running) {
    const auto with = operands(stage);
    Shape::Operand a;
    float out[32];
    const float scale = stateScale(), back = inversePower(scale), decay = decays(stage)[kChunk];
    roundTimes(a, scale);
    if (decay == 0) {  // elements may be non-finite
#pragma unroll
      for (float& number : state_) number = 0;
    }
#pragma unroll
    for (float& number : state_) number *= decay;
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      warpgroup::multiply<T, Terms::AlongRows>(out, a[step], with.queries + channelStep(step), step > 0);
    }
    warpgroup::commit();
    awaitOutTile();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
    eachOfQueries(out, decays(stage),
                  [&](float& number, float factor) { number = factor == 0 ? 0 : number * (factor * back); });
    eachOfQueries(out, inverses(stage), [](float& number, float inverse) { number *= inversePower(inverse); });
    warpgroup::fenceOperand(out);
    warpgroup::fenceOperand(state_);
    warpgroup::arrive();
    addScores(out, with, true);
    warpgroup::commit();
    this->template addKeys<0>(with);
    this->template addKeys<1>(with);
    this->template addKeys<2>(with);
    this->template addKeys<3>(with);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(out);
    lower(out, inverses(stage));
    put(out, item, chunk, running);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    finish(item, chunk, running);
  }

  /// The same with fewer registers, which the values need: the state's term is complete before the scores' is added.
  template <bool forgets>
  SEQPAR_DEVICE void multiplyFactors(char* stage, const Sweep& item, const Chunk& chunk, int running) {
    const auto with = operands(stage);
    Shape::Operand a;
    uint32_t values[4][4];
    float out[32];
    static_assert(!kRaises);
    roundTimes(a, 1);
    const float decay = decays(stage)[kChunk];
#pragma unroll
    for (int i = 0; i < Shape::kStateElements; ++i) state_[i] = forgets ? 0 : state_[i] * decay;
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      warpgroup::multiply<T, Terms::AlongRows>(out, a[step], with.queries + channelStep(step), step > 0);
    }
    warpgroup::commit();
    loadValues(values, stage);
    awaitOutTile();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(decays(stage) + 8 * j + 2 * (lane_ % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 == 0 ? by.x : by.y;
        out[4 * j + e] = forgets && factor == 0 ? 0 : out[4 * j + e] * factor;
      }
    }
    warpgroup::fenceOperand(out);
    warpgroup::fenceOperand(state_);
    warpgroup::arrive();
    addScores(out, with, true);
    warpgroup::commit();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      warpgroup::multiply<T, Terms::Rows>(state_, values[step], with.keys + step * kNextStepOfColumns, true);
    }
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(out);
    put(out, item, chunk, running);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    finish(item, chunk, running);
  }

  /// This thread's values, times their tokens' factors, as A of the state's product.
  SEQPAR_DEVICE void loadValues(uint32_t (&values)[4][4], const char* stage) const {
    const int warp = thread_ / 32, matrix = lane_ / 8;
    const uint32_t tile = ptx::sharedAddress(stage) + Layout::kValues + which_ * kTileBytes;
    const float* const factors = vectors(stage, 2 + (kPair ? which_ : 0)) + 2 * (lane_ % 4);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int token = 16 * step + matrix / 2 * 8 + lane_ % 8;
      ptx::ldmatrixX4Trans(values[step], tile + swizzled(token, 32 * warp + matrix % 2 * 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 by = *reinterpret_cast<const float2*>(factors + 16 * step + i / 2 * 8);
        const float2 two = Numbers<T>::unpack(values[step][i]);
        values[step][i] = Numbers<T>::pack(two.x * by.x, two.y * by.y);
      }
    }
  }
};

}  // namespace seqpar::attn::forward_sm90
