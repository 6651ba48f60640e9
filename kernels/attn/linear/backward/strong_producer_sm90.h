// Producers of the gradients' kernel for strong channel decays (strong_consumer_sm90.h). They leave queries and keys
// unchanged, except in the sweep.
#pragma once

#include "kernels/attn/linear/backward/channel_producer_sm90.h"
#include "kernels/attn/linear/backward/strong_decays_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, int kHeads = 1>
struct StrongChannelProducer {
  using Mild = ChannelProducer<T, kHeads>;
  using Memory = ChannelMemory<T, kHeads>;
  using Decays = ChannelDecays<T>;
  using Images = ChunkImages<T, kHeads>;
  using Strong = StrongDecays<T>;
  static constexpr bool kLogs = true;  ///< decays are stored as each token's logarithm

  template <bool kConsumersAdd>
  SEQPAR_DEVICE static bool sweep(const Task& task, const Item<T>& item, const Half& me) {
    static_assert(kConsumersAdd);
    sweepChannels<StrongChannelProducer, kHeads>(task, item, me);
    return true;
  }
  SEQPAR_DEVICE static void load(const Task&, const Item<T>&, int, const Half&) {}
  SEQPAR_DEVICE static float total(int row, int chunk, const Memory& memory) { return Mild::total(row, chunk, memory); }
  SEQPAR_DEVICE static void storeCarry(Memory& memory, int chunk, float (&sums)[2], const Half& me) {
    Mild::storeCarry(memory, chunk, sums, me);
  }

  /// Multiplies keys by their decay to the chunk's end.
  SEQPAR_DEVICE static void scaleSwept(int chunk, Memory& memory, const Half& me) {
    T* keys = memory.sweptKeys(chunk);
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      uint32_t ks[4];
      typename Strong::Exponents decay;
      loadTiles(ks, keys, n, me);
      Strong::toEnd(decay, memory.decays.sums[chunk % 2], me.firstColumn / 8 + n, me);
      Strong::raise(decay);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        ks[i] = ptx::pack<T>(Strong::template lowOf<T>(ks, decay, i), Strong::template highOf<T>(ks, decay, i));
      }
      storeTiles(keys, n, ks, me);
    }
  }
  /// Adds the chunk's terms to the state's gradient (complete after the products' wait).
  SEQPAR_DEVICE static void addTo(const Task& task, State<T, Half, kHeads>& gradient, int chunk, Memory& memory,
                                  const Half& me) {
    // One step at a time: operands of two exceed the registers, and ptxas then serializes all products of the kernel.
    uint32_t own[4], rest[4];
    typename Strong::Transposed decay;
    SEQPAR_UNROLL
    for (int step = 0; step < kChunk / 16; ++step) {
      if (step > 0) {
        warpgroup::commit();
        warpgroup::wait<0>();
      }
      Images::queriesOf(own, rest, memory.q(chunk), step, false, 1, me);
      decay.scale(own, rest, memory.decays.sums[chunk % 2], step, task.scale, me);
      warpgroup::arrive();
      gradient.add(own, memory.dOut(chunk), step, me);
      gradient.add(rest, memory.dOut(chunk), step, me);
    }
  }

  /// The gates' gradients of a chunk, as ChannelProducer::finish() computes them, except that a channel that the chunk
  /// forgets has the carry from the chunk's end plus the terms of its own and later tokens instead, because the state
  /// before the chunk may be non-finite there. The gradient of a decay of 0 is 0.
  SEQPAR_DEVICE static void finish(const Task& task, const Item<T>& item, int chunk, Memory& memory, const Half& me) {
    constexpr int kWarps = Half::kThreads / 32, kTokens = kChunk / kWarps, kNumbers = 4;
    const Target& to = task.dGates;
    if (to.data == nullptr) return;
    const int own = me.thread / 32, half = me.lane / 16, column = me.lane % 16 * kNumbers;
    float* terms = memory.strongTerms(chunk, half) + column % 8;
    const auto at = [&](int token) { return terms + token * kPanel + (column / 8 ^ token % 8) * 8; };
    const int first = own * kTokens, last = first + kTokens - 1;
    float before[kNumbers] = {}, lastTerm[kNumbers] = {};
    SEQPAR_UNROLL
    for (int t = first; t < last; ++t) Mild::template addNumbers<1>(before, at(t));
    Mild::template addNumbers<1>(lastTerm, at(last));
    uint32_t words[kNumbers];
    SEQPAR_UNROLL
    for (int i = 0; i < kNumbers; ++i) words[i] = asBits(before[i] + lastTerm[i]);
    ptx::store(at(last), words);
    Roles::syncProducers();
    float earlier[kNumbers] = {}, later[kNumbers] = {}, sum[kNumbers];
    SEQPAR_ROLLED
    for (int w = 0; w < kWarps; ++w) {
      if (w < own) Mild::template addNumbers<1>(earlier, at(w * kTokens + kTokens - 1));
      if (w > own) Mild::template addNumbers<1>(later, at(w * kTokens + kTokens - 1));
    }
    const auto& sums = memory.decays.sums[chunk % 2];
    SEQPAR_UNROLL
    for (int i = 0; i < kNumbers; ++i) {
      const int channel = half * kPanel + column + i;
      const bool forgotten = decayOf(sums.totals[channel]) == 0;
      const float *begin = memory.carry[chunk % 2], *end = memory.carry[(chunk + 1) % 2];
      sum[i] = forgotten ? end[channel] + later[i] + lastTerm[i] : begin[channel] - earlier[i] - before[i];
    }
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = Mild::rowsOf(item, token, half, column);
    int64_t offset = Mild::offsetOf(to, item, token + last, half, column);
    SEQPAR_ROLLED
    for (int t = last; t >= first; --t) {
      if (t < last) Mild::template addNumbers<1>(sum, at(t));
      const uint16_t* logs =
          sums.fixed + half * kTilePanel + t * kPanel + Decays::unitAt(t, column / 8) * 8 + column % 8;
      float numbers[kNumbers];
      SEQPAR_UNROLL
      for (int i = 0; i < kNumbers; ++i) {
        numbers[i] = ptx::lowOf<Fp16>(logs[i]) <= kForgottenLog2 ? 0.f : sum[i];
      }
      if (t < rows) Mild::storeNumbers(to, offset, numbers);
      offset -= to.token;
    }
    Roles::syncProducers();
  }
};

}  // namespace seqpar::attn::backward::sm90
