// What producers of the gradients' kernels do with decays of channels (channel_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/images_sm90.h"
#include "kernels/attn/linear/backward/rows_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ChannelProducer {
  using Memory = ChannelMemory<T>;
  using Decays = ChannelDecays<T>;
  using Images = ChunkImages<T>;
  static constexpr bool kHasImages = std::is_same_v<T, Bf16>;
  static constexpr bool kDecaysFirst = true;  ///< the state's gradient becomes an operand with the chunk's decay
  static constexpr int kBatch = 4;            ///< accumulator tiles whose words are read before any is written

  /// Gates come a chunk ahead, keys and values two. Keeps the sums of the decays for the chunks' gradients. Gives
  /// whether this thread found the segment's decays mild.
  SEQPAR_WARP static bool sweep(const Task& task, const Item<T>& item, const Half& place) {
    const auto fetchTiles = [&](int chunk) {
      if (chunk < item.chunks) memoryAgain<Memory>().fetchSwept(task, item, chunk, place.again().thread);
      warp::commitCopies();
    };
    const auto fetchGates = [&](int chunk) {
      if (chunk < item.chunks) {
        SweptGates<T>::fetch(memoryAgain<Memory>().sweptGates(chunk), task, item, chunk, place.again());
      }
      warp::commitCopies();
    };
    bool mild = true;
    if (item.chunks == 0) return mild;
    fetchTiles(0);
    fetchGates(0);
    fetchTiles(1);
    for (int i = 0; i < item.chunks; ++i) {
      fetchGates(i + 1);
      Memory& memory = memoryAgain<Memory>();
      warp::awaitCopies<2>();  // but for the tiles and the gates of the next chunk
      warp::syncWarp();
      const Half me = place.again();
      mild = SweptGates<T>::addUp(task, memory.sweptGates(i), memory.decays.sums[i % 2], me) && mild;
      if (me.thread == 0) warp::awaitBulkRead<0>();  // the next chunk's sums take the place of those before this one's
      warpgroup::publish();
      Roles::syncProducers();
      if (me.thread == 0) {
        warp::storeBulk(Decays::kept(task, i), &memory.decays.sums[i % 2], kDecaySumsBytes);
        warp::commitBulk();
      }
      scaleSwept(i, memory, me.again());
      warpgroup::publish();
      Roles::arrivePrepared(i);
      if (i > 0) Roles::awaitDone(i - 1);
      fetchTiles(i + 2);
    }
    Roles::awaitDone(item.chunks - 1);
    if (place.thread == 0) warp::awaitBulk();
    return mild;
  }

  /// Decays are as the sweep left them.
  SEQPAR_WARP static void load(const Task&, const Item<T>&, int, const Half&) {}
  SEQPAR_WARP static void addUp(const Task&, const Item<T>&, int, Memory&, const Half&) {}
  /// Keys times their decay to the chunk's end.
  SEQPAR_WARP static void scaleSwept(int chunk, Memory& memory, const Half& me) {
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
          warp::loadPair(memory.decays.sums[chunk % 2].totals + me.column(first + j * 2 + i / 2), low, high);
          ks[j][i] = warp::pack<T>(warp::lowOf<T>(ks[j][i]) * decayOf(low - Decays::lowOf(sums[j][i])),
                                   warp::highOf<T>(ks[j][i]) * decayOf(high - Decays::highOf(sums[j][i])));
        }
        storeTiles(keys, first + j * 2, ks[j], me);
      }
    }
  }
  SEQPAR_WARP static void measure(int chunk, Memory& memory, const Half& me) {
    if constexpr (kHasImages) Images::measure(chunk, memory, me);
  }
  /// q becomes q p scale, k becomes k / p, or images of these.
  SEQPAR_WARP static void scale(const Task& task, int chunk, Memory& memory, const Half& me) {
    if constexpr (kHasImages) {
      const ImageScales scales = Images::scalesOf(memory, task.scale);
      if (me.thread == 0) memory.images[chunk % 2] = scales;
      if (scales.fit != 0) {
        return scaleTo(chunk, memory, task.scale * powerOf2(scales.queries), powerOf2(scales.keys), packHalves, me);
      }
    }
    scaleTo(chunk, memory, task.scale, 1, warp::pack<T>, me);
  }
  /// q becomes q p ofQueries, k becomes k / p ofKeys.
  template <class Pack>
  SEQPAR_WARP static void scaleTo(int chunk, Memory& memory, float ofQueries, float ofKeys, const Pack& pack,
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
          const float low = warp::exp2(Decays::lowOf(sums[j][i])), high = warp::exp2(Decays::highOf(sums[j][i]));
          qs[j][i] = pack(warp::lowOf<T>(qs[j][i]) * (ofQueries * low), warp::highOf<T>(qs[j][i]) * (ofQueries * high));
          ks[j][i] = pack(warp::lowOf<T>(ks[j][i]) * (ofKeys * warp::reciprocal(low)),
                          warp::highOf<T>(ks[j][i]) * (ofKeys * warp::reciprocal(high)));
        }
        storeTiles(q, first + j * 2, qs[j], me);
        storeTiles(k, first + j * 2, ks[j], me);
      }
    }
  }
  SEQPAR_WARP static void copyScaled(const Task&, int, Memory&, const Half&) {}
  /// The chunk's terms of the state's gradient, when the products are waited for: of the same queries as all others.
  SEQPAR_WARP static void addTo(State<T, Half>& gradient, int chunk, Memory& memory, const Half& me) {
    if constexpr (kHasImages) {
      constexpr int kAtOnce = 2;
      uint32_t words[kAtOnce][4], rests[kAtOnce][4];
      const ImageScales& scales = memory.images[chunk % 2];
      const bool fit = warp::uniform(scales.fit) != 0;
      const float factor = powerOf2(fit ? -scales.queries : 0);
      SEQPAR_UNROLL
      for (int step = 0; step < kChunk / 16; ++step) {
        auto &own = words[step % kAtOnce], &rest = rests[step % kAtOnce];
        if (step > 0) warpgroup::commit();
        if (step >= kAtOnce) warpgroup::await<kAtOnce - 1>();
        Images::queriesOf(own, rest, memory.q(chunk), step, fit, factor, me);
        warpgroup::begin();
        gradient.add(own, memory.dOut(chunk), step);
        gradient.add(rest, memory.dOut(chunk), step);
      }
    } else {
      warpgroup::begin();
      gradient.add(memory.q(chunk), memory.dOut(chunk), me);
    }
  }

  /// The log-decays of a state's row over the chunk.
  SEQPAR_WARP static float total(int row, int chunk, const Memory& memory) {
    return memory.decays.sums[chunk % 2].totals[row];
  }

  /// The gates' gradients of a chunk, of whose tokens consumers have left terms: the carry less the terms of earlier
  /// tokens. A warp adds up eight tokens, of which each lane has four channels. All producers; their tiles may be
  /// replaced then.
  SEQPAR_WARP static void finish(const Task& task, const Item<T>& item, int chunk, Memory& memory, const Half& me) {
    constexpr int kWarps = Half::kThreads / 32, kTokens = kChunk / kWarps, kNumbers = 4;
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
    for (int i = 0; i < kNumbers; ++i) words[i] = warp::bitsOf(sum[i]);
    warp::store(at(first + kTokens - 1), words);  // whose own term no other needs
    Roles::syncProducers();
    SEQPAR_UNROLL
    for (int i = 0; i < kNumbers; ++i) sum[i] = 0;
    addNumbers<1>(sum, memory.carry[chunk % 2] + half * kPanel + column);
    SEQPAR_UNROLL
    for (int w = 0; w < kWarps - 1; ++w) {
      float others[kNumbers] = {};  // read whether needed or not: all at once
      addNumbers<-1>(others, at(w * kTokens + kTokens - 1));
      SEQPAR_UNROLL
      for (int i = 0; i < kNumbers; ++i) sum[i] += w < own ? others[i] : 0.f;
    }
    const int64_t token = item.first + int64_t{chunk} * kChunk + first;
    const int channel = half * kPanel + column, rows = channel < item.keys ? item.rowsOf(token) : 0;
    int64_t offset = item.sequence * to.batch + token * to.token + item.head * to.head + keyOffset(to, item) + channel;
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      if (t < rows) storeNumbers(to, offset, sum);
      offset += to.token;
      if (t < kTokens - 1) addNumbers<-1>(sum, at(first + t));
    }
    Roles::syncProducers();
  }

  /// Row sums of S * E, of which each of four lanes has a part, become what the gates of a chunk get from after it.
  SEQPAR_WARP static void storeCarry(Memory& memory, int chunk, float (&sums)[2], const Half& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums[r] += warp::shuffleXor(sums[r], 1);
      sums[r] += warp::shuffleXor(sums[r], 2);
      if (me.c == 0) memory.carry[chunk & 1][State<T, Half>::row(me) + r * 8] = sums[r];
    }
  }

 private:
  /// to += kSign numbers.
  template <int kSign>
  SEQPAR_WARP static void addNumbers(float (&to)[4], const float* from) {
    uint32_t words[4];
    warp::load(words, from);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) to[i] += kSign * warp::ofBits(words[i]);
  }
  SEQPAR_WARP static void storeNumbers(const Target& to, int64_t offset, const float (&numbers)[4]) {
    if (to.type == seqparFloat32) {
      float* at = static_cast<float*>(to.data) + offset;
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = warp::bitsOf(numbers[i]);
      if (to.wide) {
        warp::storeStreaming(static_cast<void*>(at), words);
      } else {
        warp::storeStreaming(at, numbers[0], numbers[1]);
        warp::storeStreaming(at + 2, numbers[2], numbers[3]);
      }
    } else {
      uint16_t* at = static_cast<uint16_t*>(to.data) + offset;
      const uint32_t low = warp::pack<Bf16>(numbers[0], numbers[1]), high = warp::pack<Bf16>(numbers[2], numbers[3]);
      if (to.wide) {
        warp::storeStreaming(at, low, high);
      } else {
        warp::storeStreaming(at, low);
        warp::storeStreaming(at + 2, high);
      }
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
