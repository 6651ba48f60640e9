// Producers of the gradients' kernels for channel decays (channel_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/channel_sweep_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, int kHeads = 1>
struct ChannelProducer {
  using Memory = ChannelMemory<T, kHeads>;
  using Decays = ChannelDecays<T>;
  using Images = ChunkImages<T, kHeads>;
  using StateOf = State<T, Half, kHeads>;
  static constexpr bool kHasImages = std::is_same_v<T, Bf16>;
  static constexpr int kLaterGroups = 2;
  static constexpr bool kDecaysFirst = true;  ///< the state's gradient is stored after the chunk's decay
  static constexpr bool kLogs = false;        ///< decays are stored as sums
  static constexpr int kBatch = 4;            ///< accumulator tiles that are read together before any is written
  Images images;

  template <bool kConsumersAdd>
  SEQPAR_DEVICE static bool sweep(const Task& task, const Item<T>& item, const Half& me) {
    if constexpr (!kConsumersAdd) return sweepAndAdd<ChannelProducer, kHeads>(task, item, me);
    sweepChannels<ChannelProducer, kHeads>(task, item, me);
    return true;
  }

  /// The sweep has stored the decays.
  SEQPAR_DEVICE static void load(const Task&, const Item<T>&, int, const Half&) {}
  SEQPAR_DEVICE static void addUp(const Task&, const Item<T>&, int, Memory&, const Half&) {}
  /// Multiplies keys by their decay to the chunk's end.
  SEQPAR_DEVICE static void scaleSwept(int chunk, Memory& memory, const Half& me) {
    T* keys = memory.sweptKeys(chunk);
    SEQPAR_UNROLL
    for (int first = 0; first < Half::kTiles8; first += kBatch) {
      uint32_t ks[kBatch / 2][4], sums[kBatch / 2][4];
      SEQPAR_UNROLL
      for (int j = 0; j < kBatch / 2; ++j) {
        loadTiles(ks[j], keys, first + j * 2, me);
        memory.decays.load(sums[j], chunk, first + j * 2, me);
      }
      SEQPAR_UNROLL
      for (int j = 0; j < kBatch / 2; ++j) {
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          float low, high;
          ptx::loadPair(memory.decays.sums[chunk % 2].totals + me.column(first + j * 2 + i / 2), low, high);
          ks[j][i] = ptx::pack<T>(ptx::lowOf<T>(ks[j][i]) * decayOf(low - Decays::lowOf(sums[j][i])),
                                  ptx::highOf<T>(ks[j][i]) * decayOf(high - Decays::highOf(sums[j][i])));
        }
        storeTiles(keys, first + j * 2, ks[j], me);
      }
    }
  }
  SEQPAR_DEVICE void measure(int chunk, Memory& memory, const Half& me) {
    if constexpr (kHasImages) images.measure(chunk, memory, me);
  }
  /// Replaces q by q p scale, and k by k / p, or by images of these.
  SEQPAR_DEVICE void scale(const Task& task, int chunk, Memory& memory, const Half& me) const {
    if constexpr (kHasImages) {
      const int head = Memory::headOf(me);
      const ImageScales scales = Images::scalesOf(memory, task.scale, head);
      if ((kHeads == 1 ? me.thread : me.inGroup) == 0) memory.images[chunk % 2][head] = scales;
      if (scales.fit != 0) {
        images.note(scales, task.scale, memory, me);
        return scaleTo(chunk, memory, task.scale * powerOf2(scales.queries), powerOf2(scales.keys), packHalves, me);
      }
    }
    if constexpr (kHasImages && kHeads > 1) {
      if (me.lane == 0) memory.wide[me.thread / 32] = 1;
    } else {
      scaleTo(chunk, memory, task.scale, 1, ptx::pack<T>, me);
    }
  }
  /// Replaces q by q p ofQueries, and k by k / p ofKeys.
  template <class Pack>
  SEQPAR_DEVICE static void scaleTo(int chunk, Memory& memory, float ofQueries, float ofKeys, const Pack& pack,
                                    const Half& me) {
    T *q = memory.q(chunk), *k = memory.k(chunk);
    SEQPAR_UNROLL
    for (int first = 0; first < Half::kTiles8; first += kBatch) {
      uint32_t qs[kBatch / 2][4], ks[kBatch / 2][4], sums[kBatch / 2][4];
      SEQPAR_UNROLL
      for (int j = 0; j < kBatch / 2; ++j) {
        loadTiles(qs[j], q, first + j * 2, me);
        loadTiles(ks[j], k, first + j * 2, me);
        memory.decays.load(sums[j], chunk, first + j * 2, me);
      }
      SEQPAR_UNROLL
      for (int j = 0; j < kBatch / 2; ++j) {
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float low = ptx::ex2ApproxOfDecay(Decays::lowOf(sums[j][i])),
                      high = ptx::ex2ApproxOfDecay(Decays::highOf(sums[j][i]));
          float inverses[2];
          Decays::invert(inverses, low, high);
          qs[j][i] = pack(ptx::lowOf<T>(qs[j][i]) * (ofQueries * low), ptx::highOf<T>(qs[j][i]) * (ofQueries * high));
          ks[j][i] =
              pack(ptx::lowOf<T>(ks[j][i]) * (ofKeys * inverses[0]), ptx::highOf<T>(ks[j][i]) * (ofKeys * inverses[1]));
        }
        storeTiles(q, first + j * 2, qs[j], me);
        storeTiles(k, first + j * 2, ks[j], me);
      }
    }
  }
  SEQPAR_DEVICE static void copyScaled(const Task&, int, Memory&, const Half&) {}
  /// Adds the chunk's terms to the state's gradient (complete after the products' wait), with the same queries as all
  /// other products.
  SEQPAR_DEVICE static void addTo(const Task&, StateOf& gradient, int chunk, Memory& memory, const Half& me) {
    if constexpr (kHasImages) {
      constexpr int kAtOnce = 2;
      uint32_t words[kAtOnce][4], rests[kAtOnce][4];
      const ImageScales& scales = memory.images[chunk % 2][Memory::headOf(me)];
      const bool fit = ptx::uniform(scales.fit) != 0;
      const float factor = powerOf2(fit ? -scales.queries : 0);
      SEQPAR_UNROLL
      for (int step = 0; step < kChunk / 16; ++step) {
        auto &own = words[step % kAtOnce], &rest = rests[step % kAtOnce];
        if (step > 0) warpgroup::commit();
        if (step >= kAtOnce) warpgroup::wait<kAtOnce - 1>();
        Images::queriesOf(own, rest, memory.q(chunk), step, fit, factor, me);
        warpgroup::arrive();
        gradient.add(own, memory.dOut(chunk), step, me);
        gradient.add(rest, memory.dOut(chunk), step, me);
      }
    } else {
      warpgroup::arrive();
      gradient.add(memory.q(chunk), memory.dOut(chunk), me);
    }
  }

  /// The log-decay of a state's row over the chunk.
  SEQPAR_DEVICE static float total(int row, int chunk, const Memory& memory) {
    return memory.decays.sums[chunk % 2].totals[row];
  }

  /// Computes the gates' gradients of a chunk: the carry less the terms of earlier tokens, which consumers have stored.
  /// A warp adds eight tokens; each lane has four channels. Called by all producers; afterwards their tiles may be
  /// replaced.
  SEQPAR_DEVICE static void finish(const Task& task, const Item<T>& item, int chunk, Memory& memory, const Half& me) {
    constexpr int kWarps = Half::kThreads / 32, kTokens = kChunk / kWarps, kNumbers = 4;
    constexpr int kAtOnce = 4;  // tokens whose terms are loaded together
    const Target& to = task.dGates;
    if (to.data == nullptr) return;
    const int own = me.thread / 32, half = me.lane / 16, column = me.lane % 16 * kNumbers;
    float* terms = memory.terms(chunk, half) + column % 8;
    const auto at = [&](int token) { return terms + token * kPanel + (column / 8 ^ token % 8) * 8; };
    const int first = own * kTokens;
    float sum[kNumbers] = {};
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) addNumbers<1>(sum, at(first + t));
    uint32_t words[kNumbers];
    SEQPAR_UNROLL
    for (int i = 0; i < kNumbers; ++i) words[i] = asBits(sum[i]);
    ptx::store(at(first + kTokens - 1), words);  // the own term of this token is not needed by other warps
    Roles::syncProducers();
    SEQPAR_UNROLL
    for (int i = 0; i < kNumbers; ++i) sum[i] = 0;
    addNumbers<1>(sum, memory.carry[chunk % 2] + half * kPanel + column);
    SEQPAR_UNROLL
    for (int w = 0; w < kWarps - 1; ++w) {
      float others[kNumbers] = {};  // loaded unconditionally: all loads at once
      addNumbers<-1>(others, at(w * kTokens + kTokens - 1));
      SEQPAR_UNROLL
      for (int i = 0; i < kNumbers; ++i) sum[i] += w < own ? others[i] : 0.f;
    }
    const int64_t token = item.first + int64_t{chunk} * kChunk + first;
    const int rows = rowsOf(item, token, half, column);
    int64_t offset = offsetOf(to, item, token, half, column);
    const auto storeAll = [&](const auto& store) {
      SEQPAR_UNROLL
      for (int begin = 0; begin < kTokens; begin += kAtOnce) {
        uint32_t later[kAtOnce][kNumbers];
        SEQPAR_UNROLL
        for (int t = 0; t < kAtOnce; ++t) ptx::load(later[t], at(first + begin + t));
        SEQPAR_UNROLL
        for (int t = 0; t < kAtOnce; ++t) {
          if (begin + t < rows) store(offset, sum);
          offset += to.token;
          SEQPAR_UNROLL
          for (int i = 0; i < kNumbers; ++i) sum[i] -= asFloat(later[t][i]);
        }
      }
    };
    if (to.type == seqparFloat32 && to.wide) {
      storeAll([&](int64_t at, const float(&numbers)[kNumbers]) {
        SEQPAR_UNROLL
        for (int i = 0; i < kNumbers; ++i) words[i] = asBits(numbers[i]);
        ptx::storeStreaming(static_cast<void*>(static_cast<float*>(to.data) + at), words);
      });
    } else {
      storeAll([&](int64_t at, const float(&numbers)[kNumbers]) { storeNumbers(to, at, numbers); });
    }
    Roles::syncProducers();
  }

  /// The valid rows of a column of one half of the channels, and its offset in `to`. With two heads, a half is a head.
  SEQPAR_DEVICE static int rowsOf(const Item<T>& item, int64_t token, int half, int column) {
    const bool valid = kHeads == 1 ? half * kPanel + column < item.keys : half < item.heads && column < item.keys;
    return valid ? item.rowsOf(token) : 0;
  }
  SEQPAR_DEVICE static int64_t offsetOf(const Target& to, const Item<T>& item, int64_t token, int half, int column) {
    return item.sequence * to.batch + token * to.token + item.head * to.head + keyOffset(to, item) + column +
           half * (kHeads == 1 ? int64_t{kPanel} : to.head);
  }

  /// Reduces row sums of S * E over four lanes and stores them as the carry that a chunk's gates receive from later
  /// tokens.
  SEQPAR_DEVICE static void storeCarry(Memory& memory, int chunk, float (&sums)[2], const Half& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums[r] += ptx::shflXor(sums[r], 1);
      sums[r] += ptx::shflXor(sums[r], 2);
      if (me.c == 0) memory.carry[chunk & 1][StateOf::row(me) + r * 8] = sums[r];
    }
  }

  /// to += kSign * from.
  template <int kSign>
  SEQPAR_DEVICE static void addNumbers(float (&to)[4], const float* from) {
    uint32_t words[4];
    ptx::load(words, from);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) to[i] += kSign * asFloat(words[i]);
  }
  SEQPAR_DEVICE static void storeNumbers(const Target& to, int64_t offset, const float (&numbers)[4]) {
    if (to.type == seqparFloat32) {
      float* at = static_cast<float*>(to.data) + offset;
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = asBits(numbers[i]);
      if (to.wide) {
        ptx::storeStreaming(static_cast<void*>(at), words);
      } else {
        ptx::storeStreaming(at, numbers[0], numbers[1]);
        ptx::storeStreaming(at + 2, numbers[2], numbers[3]);
      }
    } else {
      uint16_t* at = static_cast<uint16_t*>(to.data) + offset;
      const uint32_t low = ptx::pack<Bf16>(numbers[0], numbers[1]), high = ptx::pack<Bf16>(numbers[2], numbers[3]);
      if (to.wide) {
        ptx::storeStreaming(at, low, high);
      } else {
        ptx::storeStreaming(at, low);
        ptx::storeStreaming(at + 2, high);
      }
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
