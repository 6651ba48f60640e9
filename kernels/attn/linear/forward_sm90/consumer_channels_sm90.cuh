// The consumer warpgroups of pass 3 (outputs_sm90.cuh) for channel decays.
#pragma once

#include "kernels/attn/linear/forward_sm90/outputs_consumer_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// A consumer has 64 columns of a head; Joined: a short head.
template <class T, bool Wide, bool Joined>
using ChannelOutputs =
    std::conditional_t<Joined, OutputsConsumer<T, OutputsSharedFor<T, 2>, true, false, Wide, ShortShape>,
                       OutputsConsumer<T, OutputsSharedFor<T>, false, false, Wide>>;

template <class T, bool Wide, bool Joined = false>
class ChannelConsumer : ChannelOutputs<T, Wide, Joined> {
 public:
  using Base = ChannelOutputs<T, Wide, Joined>;
  using Base::Base;
  using typename Base::Layout, typename Base::Own;

  SEQPAR_DEVICE int run(const Sweep& given, int first, const Pipeline<Layout::kStages>& pipeline) {
    Sweep item = given;
    if constexpr (Joined) {
      item.head += which_;
      if (item.head >= kernel_.pass.heads.first + kernel_.pass.heads.count) {  // after an odd number of heads
        return this->each(item, first, pipeline, [](char*, const Chunk&, int, bool) {});
      }
    }
    if (Wide && !item.opens) {
      this->resume(item);
    } else {
      start(item);
    }
    const bool wantsFinal = this->wantsFinal(item);
    const auto multiply = [&](char* stage, const Chunk& chunk, int running, bool last) {
      this->template scaleState<false>(vectors(stage, 0));
      if (reinterpret_cast<const int*>(shared_ + Layout::kExact)[running % Layout::kStages] == 0) {
        multiplySafe(stage, item, chunk, running);
      } else {
        multiplyExact(stage, item, chunk, running);
      }
      if ((wantsFinal || (Wide && !item.closes)) && last) this->template scaleState<false>(vectors(stage, 1));
    };
    const int count = this->each(item, first, pipeline, multiply);
    if (Wide && !item.closes) {
      this->keepState(item);
      return count;
    }
    if (thread_ == 0) ptx::cpAsyncBulkWaitGroup();
    ptx::griddepcontrolWait();  // the next kernel only waits for this one
    if (wantsFinal) putFinal(item);
    return count;
  }

 private:
  using Base::kernel_, Base::problem_, Base::shared_, Base::which_, Base::thread_, Base::lane_, Base::state_;
  using Base::vectors, Base::syncGroup, Base::round, Base::roundTimes, Base::operands, Base::addScores, Base::put,
      Base::awaitOutTile, Base::finish, Base::putFinal, Base::kRaises, Base::stateScale, Base::inverses,
      Base::eachOfQueries, Base::lower;
  /// Like StateBefore, for channel decays, where registers do not suffice for two states at once: the code of
  /// StateBefore spills more of them.
  SEQPAR_DEVICE void start(const Sweep& item) {
    const Outputs& pass = kernel_.pass;
    const int64_t firstMap = mapIndex(item, problem_, pass.segments) - item.before;  // of the sequence
    const int64_t size = int64_t{problem_.dk} * problem_.dv;
    const float* const initial =
        pass.initial != nullptr && item.continues ? pass.initial + headIndex(item, problem_) * size : nullptr;
#pragma unroll
    for (int i = 0; i < Own::kStateElements; ++i) state_[i] = 0;
    if (item.before == 0 && initial == nullptr) return;  // independent of pass 1: these CTAs may overlap with it
    // From the last segment to the first, or all segments as one; then `initial`.
    if (pass.mapsVisible == Visible::AfterWait) ptx::griddepcontrolWait();
#pragma unroll 1
    for (int next = item.before; next >= 0; next = pass.content != Maps::Prefix ? next - 1 : min(next, 1) - 1) {
      const float* from = initial;
      if (next > 0) from = pass.maps.states + (firstMap + (pass.content != Maps::Prefix ? next - 1 : next)) * size;
      if (from != nullptr && !addDecayed(item, from, next)) return;  // the earlier states are forgotten too
    }
  }
  /// Adds a state decayed over the sequence's segments from `first` to before the item's. Returns false if the decay
  /// has forgotten it.
  SEQPAR_DEVICE bool addDecayed(const Sweep& item, const float* from, int first) {
    const Outputs& pass = kernel_.pass;
    const int column = item.tile * Shape::kColumns, values = problem_.dv - column;
    const int firstChannel = item.firstChannel();
    from += int64_t{firstChannel} * problem_.dv;
    // Uses the output buffer, after the outputs of the previous item were copied.
    float* const factors = reinterpret_cast<float*>(shared_ + Layout::kOut + which_ * kTileBytes);
    if (thread_ == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
    syncGroup();
    const int width = transitionWidth(problem_);
    const int64_t firstMap = mapIndex(item, problem_, pass.segments) - item.before;
    float sum = 0;
    for (int map = first; map < item.before && firstChannel + thread_ < problem_.dk; ++map) {
      sum += pass.maps.transitions[(firstMap + map) * width + (width > 1 ? firstChannel + thread_ : 0)];
    }
    const float mine = firstChannel + thread_ < problem_.dk ? ptx::ex2Approx(sum * kLog2e) : 0;
    factors[thread_] = mine;
    if (!ptx::barrierRedOr(kConsumerBarrier + which_, kGroupThreads, mine != 0)) return false;
    const int thread = ptx::opaque(thread_),
              row = kSwizzleColumns * this->half() + 16 * (thread / 32) + thread % 32 / 4;
    const float* at = from + column + 2 * (thread % 4) * problem_.dv + row;
    const bool there[2] = {row < values, row + 8 < values};
    typename Own::State numbers;  // loaded together; indexed as in eachOfState()
#pragma unroll
    for (int j = 0; j < Own::kOctets; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = firstChannel + 8 * j < problem_.dk && there[e / 2];
        numbers[4 * j + e] = exists ? at[e % 2 * problem_.dv + e / 2 * 8] : 0;
      }
      at += 8 * problem_.dv;
    }
#pragma unroll
    for (int j = 0; j < Own::kOctets; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(factors + 8 * j + 2 * (thread % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 == 0 ? by.x : by.y;
        state_[4 * j + e] += factor == 0 ? 0 : factor * numbers[4 * j + e];
      }
    }
    syncGroup();
    return true;
  }

  /// With kRaises: the factor of the product of queries and the state, rounded times `scale`. Finite for states up to
  /// 2^100.
  SEQPAR_DEVICE float backOf(const char* stage, float scale) const {
    constexpr float kMost = 0x1p112F;  // times a power of raiseRows(), finite
    return fminf(inversePower(scale) * reinterpret_cast<const float*>(stage + Layout::kPowers)[Joined ? which_ : 0],
                 kMost);
  }
  /// With kRaises: multiplies that product by its factor, and by the powers of 2 of the scores which are added to it.
  template <int Count>
  SEQPAR_DEVICE void raise(float (&out)[Count], float back, const float* inverses) const {
    eachOfQueries(out, inverses, [&](float& number, float inverse) { number *= back * inversePower(inverse); });
  }

  /// For small exponents within the chunk: queries, keys and the state are relative to the middle of the chunk.
  SEQPAR_DEVICE void multiplySafe(char* stage, const Sweep& item, const Chunk& chunk, int running) {
    const auto with = operands(stage);
    typename Own::Operand a;
    float out[32];
    awaitOutTile();
    const float scale = stateScale();
    roundTimes(a, scale);
    warpgroup::fenceOperand(state_);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < Own::kSteps; ++step) {
      warpgroup::multiply<T, Terms::AlongRows>(out, a[step], with.queries + channelStep(step), step > 0);
    }
    if constexpr (kRaises) {
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(out);
      raise(out, backOf(stage, scale), inverses(stage));
      warpgroup::fenceOperand(out);
      warpgroup::fenceOperand(state_);
      warpgroup::arrive();
    }
    addScores(out, with, true);
    warpgroup::commit();
    this->template addKeys<0>(with);
    this->template addKeys<1>(with);
    this->template addKeys<2>(with);
    this->template addKeys<3>(with);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(out);
    if constexpr (kRaises) lower(out, inverses(stage));
    put(out, item, chunk, running);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    finish(item, chunk, running);
  }

  /// Blocks of 16 tokens, relative to the block's start; the scores are those within blocks. Decays may be 0.
  /// Non-finite elements of the state are excluded from the product, because queries are 0 where such elements are
  /// forgotten. Outputs with other queries for such elements become NaN.
  SEQPAR_DEVICE void multiplyExact(char* stage, const Sweep& item, const Chunk& chunk, int running) {
    const auto with = operands(stage);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Own::kStateElements; ++i) sum += state_[i] * 0.0F;  // 0, or NaN
    const bool finite = !ptx::barrierRedOr(kConsumerBarrier + which_, kGroupThreads, sum != sum);
    awaitOutTile();
#pragma unroll 1
    for (int block = 0; block < kChunk / kBlockTokens; ++block) {
      const int rows = block * kNextStepOfColumns;
      float out[8];
      bool met[8] = {};
      if (!finite) {
        // A different weight per channel, so that queries do not cancel.
        multiplyBlock(out, with.queries + rows, [](float x, int channel) {
          return isfinite(x) ? 0 : 1 + static_cast<float>(channel) / Own::kChannels;
        });
#pragma unroll
        for (int i = 0; i < 8; ++i) met[i] = out[i] != 0;
      }
      const auto known = [](float x) { return isfinite(x) ? x : 0; };
      const float scale = stateScale(known);
      multiplyBlock(out, with.queries + rows, [&](float x, int) { return kRaises ? known(x) * scale : known(x); });
      if constexpr (kRaises) raise(out, backOf(stage, scale), inverses(stage) + kBlockTokens * block);
      this->template scaleState<true>(vectors(stage, 2) + block * Shape::kChannels);
      warpgroup::fenceOperand(state_);
      warpgroup::fenceOperand(out);
      warpgroup::arrive();
      warpgroup::multiply<T, Terms::Rows, Terms::AlongRows>(out, with.values + rows,
                                                            with.scores + (rows + block * kNextStepOfRows), true);
      warpgroup::multiply<T, Terms::Rows, Terms::Rows>(state_, with.values + rows, with.keys + rows, true);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(out);
      warpgroup::fenceOperand(state_);
      if constexpr (kRaises) lower(out, inverses(stage) + kBlockTokens * block);
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = met[i] ? NAN : out[i];
      constexpr int kPart = 8 * kGroupThreads;
      if (!Wide || this->completes(out, item, chunk, block * kPart)) this->putColumns(out, running, 16 * block);
    }
    finish(item, chunk, running);
  }
  template <class Change>
  SEQPAR_DEVICE void multiplyBlock(float (&out)[8], Matrix queries, const Change& change) {
    typename Own::Operand a;
    round(a, change);
    warpgroup::fenceOperand(out);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < Own::kSteps; ++step) {
      warpgroup::multiply<T, Terms::AlongRows>(out, a[step], queries + channelStep(step), step > 0);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
  }
};

}  // namespace seqpar::attn::forward_sm90
