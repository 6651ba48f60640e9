// Chunks of two heads with 64 columns of v each and token decays, which share queries and keys: shared memory, and the
// producers' steps. Panel h of a tile of values, and of a state, is head h.
//
// Decays and input gates differ between the heads. In the sweep they multiply values instead of keys; for the gradient
// of the state, queries in registers.
#pragma once

#include "kernels/attn/linear/backward/input_gate_sm90.h"
#include "kernels/attn/linear/backward/token_sweep_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct PairMemory : LoadedTiles<T, kPair> {
  static constexpr int kWarps = Half::kThreads / 32;
  alignas(1024) T matrices[3][kTilePanel];  ///< of the consumers, as the terms: dA; A of each head
  float rowTerms[2][2][kChunk];     ///< sums over keys of A dA, and of q dq from the state: [warpgroup][head][query]
  float columnTerms[4][2][kChunk];  ///< sums over a warp's queries of A dA, without input gates: [warp][head][key]
  float keyTerms[2][kChunk];        ///< sums of v dv from the state, without input gates: [head][key]
  float own[2][kChunk];             ///< A dA of a token with itself, per head, if there are input gates
  float sums[2][2][kChunk];         ///< [stage][head]
  float factors[2][2][kChunk];      ///< of queries: the scale times decays from the chunk's start: [stage][head]
  float inverses[2][2][kChunk];     ///< inverse decays from the chunk's start: [stage][head]
  float inputs[2][2][kChunk];       ///< input gates, if there are any
  uint8_t forgets[2][2][kChunk];
  float carry[2][2][kWarps];  ///< sums of S * E at the ends of two chunks: [stage][head][warp]
  alignas(16) char item[kItemBytes];
};

/// Warpgroup h has head h of the values that it scales. kGated: with input gates.
template <class T, bool kGated>
struct PairProducer {
  using Memory = PairMemory<T>;
  using ItemOf = Item<T>;

  TokenLogs logs;  ///< of warps 2 and 3: input gates

  /// Warps 0 and 1 add the logarithms of the two heads, 2 and 3 copy their input gates.
  SEQPAR_DEVICE static bool adds(const Half& me) { return me.thread / 64 == 0; }
  SEQPAR_DEVICE static bool copies(const Half& me) { return kGated && me.thread / 64 == 1; }

  SEQPAR_DEVICE void load(const Task& task, const Item<T>& item, int chunk, const Half& me) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    if (adds(me)) logs.load(task, item, token, me.lane, me.thread / 32);
    if (copies(me)) loadInputs(logs.log, task, item, token, me.lane, me.thread / 32 - 2);
  }
  SEQPAR_DEVICE void addUp(const Task& task, const Item<T>&, int chunk, Memory& memory, const Half& me) const {
    const int which = me.thread / 32 % 2;
    if (adds(me)) {
      float* sums = memory.sums[chunk % 2][which];
      logs.addUp(sums, memory.forgets[chunk % 2][which], me.lane);
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float sum = sums[me.lane * 2 + i];
        memory.factors[chunk % 2][which][me.lane * 2 + i] = task.scale * decayOf(sum);
        memory.inverses[chunk % 2][which][me.lane * 2 + i] = ptx::ex2Approx(-sum);
      }
    }
    if (copies(me)) {
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) memory.inputs[chunk % 2][which][me.lane * 2 + i] = logs.log[i];
    }
  }
  /// Multiplies values by their input gates and decay to the chunk's end.
  SEQPAR_DEVICE static void scaleSwept(int chunk, Memory& memory, const Half& me) {
    T* values = memory.sweptValues(chunk);
    const float* sums = memory.sums[chunk % 2][me.group];
    const float last = sums[kChunk - 1];
    float factor = decayOf(last - sums[me.row]), factor8 = decayOf(last - sums[me.row + 8]);
    if constexpr (kGated) {
      factor *= memory.inputs[chunk % 2][me.group][me.row];
      factor8 *= memory.inputs[chunk % 2][me.group][me.row + 8];
    }
    scaleTile(values, values, factor, factor8, me);
  }
  SEQPAR_DEVICE static void addTo(State<T, Half>& gradient, int chunk, Memory& memory, const Half& me) {
    addHead<0>(gradient, chunk, memory, me);
    finishHead(gradient);
    addHead<1>(gradient, chunk, memory, me.opaque());
    finishHead(gradient);
  }

  /// Whether a product of a factor of a query and one of a key is exact to rounding; else, both may be 0 or infinite.
  SEQPAR_DEVICE static bool decaysLittle(int which, int chunk, const Memory& memory) {
    return total(which, chunk, memory) >= kLeastOfFactors;
  }
  /// The log-decay of the chunk, for one of the heads.
  SEQPAR_DEVICE static float total(int which, int chunk, const Memory& memory) {
    return memory.sums[chunk % 2][which][kChunk - 1];
  }

  /// As TokenProducer::storeCarry(), for one of the heads.
  SEQPAR_DEVICE static void storeCarry(Memory& memory, int chunk, int which, const float (&rows)[2], const Half& me) {
    float sum = rows[0] + rows[1];
    SEQPAR_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) sum += ptx::shflXor(sum, mask);
    if (me.lane == 0) memory.carry[chunk & 1][which][me.thread / 32] = sum;
  }

 private:
  template <int kHead>
  SEQPAR_DEVICE static void addHead(State<T, Half>& gradient, int chunk, Memory& memory, const Half& me) {
    constexpr int kSteps = kChunk / 16, kAtOnce = 2, kTiles = State<T, Half>::kTiles8 / 2;
    auto& tiles = reinterpret_cast<float(&)[kTiles][4]>(gradient.x[kHead * kTiles]);
    const ptx::MatrixRowsAcross own{me.lane};
    const int row = own.row(), unit = me.warpIndex * 2 + own.half();
    const T* queries = memory.q(chunk) + me.group * kTilePanel + row * kPanel + (unit ^ row % 8) * 8;
    uint32_t words[kAtOnce][4];  ///< 16 tokens of this warp's 16 channels
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint32_t(&own)[4] = words[step % kAtOnce];
      if (step == kAtOnce) finishHead(gradient);
      ptx::ldmatrixX4Trans(own, queries + step * 16 * kPanel);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        float low, high;
        ptx::loadPair(memory.factors[chunk % 2][kHead] + step * 16 + i / 2 * 8 + me.c * 2, low, high);
        own[i] = ptx::pack<T>(ptx::lowOf<T>(own[i]) * low, ptx::highOf<T>(own[i]) * high);
      }
      warpgroup::arrive();
      warpgroup::multiplyStep<T, Terms::Rows>(tiles, own, Operand{memory.dOut(chunk) + kHead * kTilePanel}, kChunk,
                                              step, true);
    }
  }
  SEQPAR_DEVICE static void finishHead(State<T, Half>& gradient) {
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(gradient.x);
  }
};

}  // namespace seqpar::attn::backward::sm90
