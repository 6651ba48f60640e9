// Factors of tokens for the kernel that stores the states of chunks (chunk_states_sm90.h): two warps take turns at the
// chunks of an item, and each computes those of all its heads.
//
// A warp waits for all of its outstanding loads at once. It therefore loads the gates of several chunks together, and
// uses them while it waits for those of the next ones.
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/gates_sm90.h"
#include "kernels/attn/linear/backward/input_gate_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A number for each token of kHeads adjacent heads in device memory, fp32 or bf16.
template <int kHeads>
struct NumbersOfHeads {
  const char* at = nullptr;     ///< of the first head and token 0; NULL: all are 0
  int64_t token = 0, head = 0;  ///< strides in elements
  bool half = false;            ///< bf16

  /// Whether all heads' numbers of a token are one aligned unit of fp32.
  SEQPAR_DEVICE bool areUnits() const {
    const bool pairs = head == 1 && token % 2 == 0 && reinterpret_cast<uintptr_t>(at) % 8 == 0;
    return at == nullptr || (!half && (kHeads == 1 || pairs));
  }
  /// Starts loads of a token's bits, which valueOf() interprets. kUnits: areUnits().
  template <bool kUnits>
  SEQPAR_DEVICE void load(uint32_t (&bits)[kHeads], int64_t atToken) const {
    if (at == nullptr) return;
    const int64_t first = atToken * token;
    if (kUnits && kHeads == 2) {
      float low, high;
      ptx::loadPair(reinterpret_cast<const float*>(at) + first, low, high);
      bits[0] = asBits(low);
      bits[kHeads - 1] = asBits(high);
      return;
    }
    SEQPAR_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const int64_t index = first + h * head;
      if (!kUnits && half) {
        bits[h] = reinterpret_cast<const uint16_t*>(at)[index];
      } else {
        bits[h] = reinterpret_cast<const uint32_t*>(at)[index];
      }
    }
  }
  SEQPAR_DEVICE float valueOf(uint32_t bits) const { return half ? ptx::lowOf<Bf16>(bits) : asFloat(bits); }
};

/// The gates of kHeads heads from `head` on.
template <int kHeads>
SEQPAR_DEVICE NumbersOfHeads<kHeads> decaysOf(const Task& task, int sequence, int head) {
  const auto* at = static_cast<const char*>(task.gates.data);
  if (task.gate == Gate::None) return {nullptr, 0, 0, false};
  if (task.gate == Gate::Head) return {at + head * 4, 0, 1, false};
  const int64_t offset = sequence * task.gates.batch + head * task.gates.head;
  return {at + offset * 4, task.gates.token, task.gates.head, false};
}
template <int kHeads>
SEQPAR_DEVICE NumbersOfHeads<kHeads> inputsOf(const Task& task, int sequence, int head) {
  const bool half = task.inputGateType == seqparBfloat16;
  const int64_t offset = sequence * task.inputGates.batch + head * task.inputGates.head;
  return {static_cast<const char*>(task.inputGates.data) + offset * (half ? 2 : 4), task.inputGates.token,
          task.inputGates.head, half};
}

/// kGated: with input gates. `reverse`: factors of dOut, from the chunk's start, else of v, to its end.
template <class T, int kHeads, bool kGated>
class ChunkFactors {
 public:
  static constexpr int kWarps = 2;

  SEQPAR_DEVICE ChunkFactors(const Task& task, const Item<T>& item, bool reverse, int lane)
      : decays_(decaysOf<kHeads>(task, item.sequence, item.head)),
        inputs_(kGated ? inputsOf<kHeads>(task, item.sequence, item.head) : NumbersOfHeads<kHeads>()),
        first_(item.first),
        end_(item.end),
        chunks_(item.chunks),
        lane_(lane),
        reverse_(reverse),
        scale_(task.scale) {}

  /// `warp`: of kWarps. Stores factors and the chunk's decays in `memory`, and arrives at the chunk's barrier `full`.
  /// `firstChunk`: the item's first number in `memory`.
  template <class Memory>
  SEQPAR_DEVICE void run(Memory& memory, int firstChunk, int warp) const {
    if (decays_.areUnits() && (reverse_ || inputs_.areUnits())) {
      runAs<true>(memory, firstChunk, warp);
    } else {
      runAs<false>(memory, firstChunk, warp);
    }
  }

 private:
  static constexpr int kTokens = 2;  ///< of a lane: adjacent
  /// Bits of a lane's tokens.
  struct Gates {
    uint32_t decays[kTokens][kHeads], inputs[kTokens][kHeads];
  };

  template <bool kUnits, class Memory>
  SEQPAR_DEVICE void runAs(Memory& memory, int firstChunk, int warp) const {
    constexpr int kTogether = 2;  // of this warp's chunks
    Gates next[kTogether];
    SEQPAR_UNROLL
    for (int i = 0; i < kTogether; ++i) load<kUnits>(next[i], warp + i * kWarps);
    for (int start = warp; start < chunks_; start += kTogether * kWarps) {
      Gates now[kTogether];
      SEQPAR_UNROLL
      for (int i = 0; i < kTogether; ++i) now[i] = next[i];
      SEQPAR_UNROLL
      for (int i = 0; i < kTogether; ++i) load<kUnits>(next[i], start + (kTogether + i) * kWarps);
      SEQPAR_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int step = start + i * kWarps;
        if (step < chunks_) compute(memory, now[i], step, firstChunk + step);
      }
    }
  }
  SEQPAR_DEVICE int64_t tokenOf(int step) const {
    return first_ + int64_t{reverse_ ? chunks_ - 1 - step : step} * kChunk;
  }
  template <bool kUnits>
  SEQPAR_DEVICE void load(Gates& to, int step) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      const int64_t token = tokenOf(step) + lane_ * kTokens + i;
      SEQPAR_UNROLL
      for (int h = 0; h < kHeads; ++h) to.decays[i][h] = to.inputs[i][h] = 0;
      if (step >= chunks_ || token >= end_) continue;
      decays_.template load<kUnits>(to.decays[i], token);
      if (kGated && !reverse_) inputs_.template load<kUnits>(to.inputs[i], token);
    }
  }
  template <class Memory>
  SEQPAR_DEVICE void compute(Memory& memory, const Gates& of, int step, int number) const {
    const int stage = number % Memory::kStages;
    const int64_t left = end_ - tokenOf(step);
    const int rows = left < kChunk ? static_cast<int>(left) : kChunk;
    float own[kHeads], sums[kHeads];
    SEQPAR_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      own[h] = bounded(decays_.valueOf(of.decays[1][h]));
      sums[h] = bounded(decays_.valueOf(of.decays[0][h])) + own[h];
    }
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      SEQPAR_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const float other = ptx::shfl(sums[h], lane_ - distance);
        if (lane_ >= distance) sums[h] += other;
      }
    }
    float totals[kHeads], factors[kHeads][kTokens];
    SEQPAR_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      totals[h] = ptx::shfl(sums[h], 31);
      SEQPAR_UNROLL
      for (int i = 0; i < kTokens; ++i) {
        const float sum = i == 0 ? sums[h] - own[h] : sums[h], decay = decayOf(reverse_ ? sum : totals[h] - sum);
        const float by = reverse_ ? scale_ : kGated ? inputs_.valueOf(of.inputs[i][h]) : 1.f;
        factors[h][i] = decay == 0 || lane_ * kTokens + i >= rows ? 0.f : decay * by;
      }
    }
    memory.awaitEmpty(number);
    SEQPAR_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      ptx::storePair(memory.factors[stage][h] + lane_ * kTokens, factors[h][0], factors[h][1]);
    }
    if (lane_ < kHeads) memory.totals[stage][lane_] = decayOf(lane_ == 0 ? totals[0] : totals[kHeads - 1]);
    ptx::syncwarp();
    if (lane_ == 0) ptx::mbarrierArrive(memory.full(number));
  }

  NumbersOfHeads<kHeads> decays_, inputs_;
  int64_t first_, end_;
  int chunks_, lane_;
  bool reverse_;
  float scale_;
};

}  // namespace seqpar::attn::backward::sm90
