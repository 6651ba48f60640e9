// Factors of tokens for outputs of a head in one chain (head_chain_sm90.h). Loads are grouped as in
// ../backward/chunk_factors_sm90.h.
#pragma once

#include "kernels/attn/linear/chunks/head_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// kGated: with input gates.
template <class Memory, bool kGated>
class HeadChainFactors {
 public:
  /// They take turns at running numbers of chunks, if each stage then has the chunks of one warp: a warp that did not
  /// wait for all phases of a stage could take an earlier one for the phase that it waits for.
  static constexpr int kWarps = Memory::kStages % 2 == 0 ? 2 : 1;

  SEQPAR_DEVICE HeadChainFactors(const HeadChainTask& task, Memory& memory, int warp, int lane)
      : task_(task), memory_(memory), warp_(warp), lane_(lane) {}

  /// `first`: the running number of the item's first chunk.
  SEQPAR_DEVICE void run(const ChainItem& item, int first) const {
    const Numbers decays = backward::sm90::decaysOf<1>(task_, item.sequence, item.head),
                  inputs = kGated ? backward::sm90::inputsOf<1>(task_, item.sequence, item.head) : Numbers();
    if (decays.areUnits() && inputs.areUnits()) {
      runAs<true>(decays, inputs, item, first);
    } else {
      runAs<false>(decays, inputs, item, first);
    }
  }

 private:
  using Numbers = backward::sm90::NumbersOfHeads<1>;
  static constexpr int kTokens = 2;  ///< of a lane: adjacent
  /// Bits of a lane's tokens.
  struct Gates {
    uint32_t decays[kTokens][1], inputs[kTokens][1];
  };

  template <bool kUnits>
  SEQPAR_DEVICE void runAs(const Numbers& decays, const Numbers& inputs, const ChainItem& item, int first) const {
    constexpr int kTogether = 2;  // of this warp's chunks
    const int begin = (warp_ + first) % kWarps;
    Gates next[kTogether];
    SEQPAR_UNROLL
    for (int i = 0; i < kTogether; ++i) load<kUnits>(next[i], decays, inputs, item.chunk + begin + i * kWarps);
    for (int start = begin; start < item.chunks; start += kTogether * kWarps) {
      Gates now[kTogether];
      SEQPAR_UNROLL
      for (int i = 0; i < kTogether; ++i) now[i] = next[i];
      SEQPAR_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        load<kUnits>(next[i], decays, inputs, item.chunk + start + (kTogether + i) * kWarps);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int step = start + i * kWarps;
        if (step >= item.chunks) continue;
        const float total = compute(now[i], decays, inputs, first + step);
        if (task_.totals != nullptr && item.column == 0 && lane_ == 0) task_.totalsOf(item)[item.chunk + step] = total;
      }
    }
  }
  template <bool kUnits>
  SEQPAR_DEVICE void load(Gates& to, const Numbers& decays, const Numbers& inputs, int chunk) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      const int64_t token = int64_t{chunk} * kChunk + lane_ * kTokens + i;
      to.decays[i][0] = to.inputs[i][0] = 0;
      if (token >= task_.tokens) continue;
      decays.template load<kUnits>(to.decays[i], token);
      if (kGated) inputs.template load<kUnits>(to.inputs[i], token);
    }
  }
  /// Returns the chunk's log2-decay.
  SEQPAR_DEVICE float compute(const Gates& of, const Numbers& decays, const Numbers& inputs, int number) const {
    const float own = backward::bounded(decays.valueOf(of.decays[1][0]));
    float sum = backward::bounded(decays.valueOf(of.decays[0][0])) + own;
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = ptx::shfl(sum, lane_ - distance);
      if (lane_ >= distance) sum += other;
    }
    const float total = ptx::shfl(sum, 31), sums[kTokens] = {sum - own, sum};
    // The reference is the chunk's start, or with stronger decays half of the total: factors have at most that many
    // bits.
    constexpr float kLeast = backward::sm90::kLeastOfFactors;
    const bool little = total >= kLeast, separable = total >= 2 * kLeast;
    const float reference = little ? 0.f : total / 2;
    float gates[kTokens], rows[kTokens], queries[kTokens], inverses[kTokens], ends[kTokens];
    SEQPAR_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      gates[i] = kGated ? inputs.valueOf(of.inputs[i][0]) : 1.f;
      rows[i] = task_.scale * backward::decayOf(sums[i]);
      queries[i] = task_.scale * ptx::ex2Approx(sums[i] - reference);
      inverses[i] = gates[i] * ptx::ex2Approx(reference - sums[i]);
      ends[i] = gates[i] * backward::decayOf(total - sums[i]);
    }
    memory_.awaitEmpty(number);
    auto& to = memory_.factorsOf(number);
    const int at = lane_ * kTokens;
    ptx::storePair(to.ends + at, ends[0], ends[1]);
    ptx::storePair(to.queries + at, separable ? queries[0] : sums[0], separable ? queries[1] : sums[1]);
    ptx::storePair(to.keys + at, separable ? inverses[0] : gates[0], separable ? inverses[1] : gates[1]);
    if constexpr (Memory::Factors::kHasRows) {
      ptx::storePair(to.rows + at, rows[0], rows[1]);
    } else if (lane_ == 0) {
      to.rows[0] = ptx::ex2Approx(reference);
    }
    if (lane_ == 0) {
      to.decay = backward::decayOf(total);
      to.little = little ? 1.f : 0.f;
      to.separable = separable ? 1.f : 0.f;
    }
    ptx::syncwarp();
    if (lane_ == 0) ptx::mbarrierArrive(memory_.full(number));
    return total;
  }

  const HeadChainTask& task_;
  Memory& memory_;
  int warp_, lane_;
};

}  // namespace seqpar::attn::forward_sm90
