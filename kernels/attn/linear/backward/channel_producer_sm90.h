// Producers of the gradients' kernels for channel decays (channel_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/images_sm90.h"
#include "kernels/attn/linear/backward/rows_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// Gates of a chunk in the sweep, in shared memory, with the type of the input. Each warp loads and adds the gates of
/// its own 16 channels: a thread has two channels over a quarter of the tokens. Rows are swizzled so that quarters use
/// different banks.
template <class T, int kHeads>
struct SweptGates {
  using Decays = ChannelDecays<T>;
  static constexpr int kParts = 4, kTokens = kChunk / kParts, kPairs = 32 / kParts, kChannels = 2 * kPairs;
  /// Of mild decays; two heads need images (heads_sm90.h).
  static constexpr float kLeastTotal =
      kHeads > 1 && std::is_same_v<T, Bf16> ? ChunkImages<T>::kLeastTotal : Decays::kLeastTotal;

  SEQPAR_DEVICE static void fetch(char* to, const Task& task, const Item<T>& item, int chunk, const Half& me) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    if (task.gateType == seqparBfloat16) {
      fetchAs<2>(to, task, item, token, me);
    } else {
      fetchAs<4>(to, task, item, token, me);
    }
  }
  /// Returns whether the decays of this thread's channels are mild. kLogs: stores each token's logarithm in fp16
  /// instead of the sums.
  template <bool kLogs>
  SEQPAR_DEVICE static bool addUp(const Task& task, const char* gates, typename Decays::Sums& to, const Half& me) {
    return task.gateType == seqparBfloat16 ? addUpAs<2, kLogs>(gates, to, me) : addUpAs<4, kLogs>(gates, to, me);
  }

 private:
  SEQPAR_DEVICE static int warpOf(const Half& me) { return me.group * 4 + me.warpIndex; }

  template <int kSize>
  SEQPAR_DEVICE static void fetchAs(char* to, const Task& task, const Item<T>& item, int64_t token, const Half& me) {
    constexpr int kRow = kChannels * kSize, kUnits = kRow / 16, kRows = 32 / kUnits;
    const int row = me.lane / kUnits, unit = me.lane % kUnits;
    const int channel = (kHeads == 1 ? warpOf(me) : me.warpIndex) * kChannels + unit * (16 / kSize);
    const int64_t stride = task.gates.token * kSize;
    const char* from = item.gates + (token + row) * stride + channel * kSize;
    int rows = channel < item.keys ? item.rowsOf(token) : 0;
    if constexpr (kHeads > 1) {
      from += me.group * task.gates.head * kSize;
      if (me.group >= item.heads) rows = 0;
    }
    to += warpOf(me) * kChunk * kRow + unit * 16;
    SEQPAR_UNROLL
    for (int i = 0; i < kChunk; i += kRows) {
      ptx::cpAsync16(to + (i + (row ^ i / kTokens)) * kRow, from, row + i < rows);
      from += kRows * stride;
    }
  }

  /// The place of a token's pair of channels.
  SEQPAR_DEVICE static uint32_t* wordOf(typename Decays::Sums& to, int channel, int token, const Half& me) {
    return reinterpret_cast<uint32_t*>(to.fixed + me.panel() * kTilePanel + token * kPanel + channel % 8 +
                                       Decays::unitAt(token, channel % kPanel / 8) * 8);
  }

  template <int kSize, bool kLogs>
  SEQPAR_DEVICE static bool addUpAs(const char* gates, typename Decays::Sums& to, const Half& me) {
    constexpr int kRow = kChannels * kSize;
    const int part = me.lane / kPairs, channel = warpOf(me) * kChannels + me.lane % kPairs * 2;
    gates += (warpOf(me) * kChunk + part * kTokens) * kRow + me.lane % kPairs * 2 * kSize;
    const char* rows[kParts];
    SEQPAR_UNROLL
    for (int i = 0; i < kParts; ++i) rows[i] = gates + (i ^ part) * kRow;
    float sums[kTokens][2];
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const char* at = rows[t % kParts] + t / kParts * kParts * kRow;
      float low, high;
      if constexpr (kSize == 4) {
        ptx::loadPair(reinterpret_cast<const float*>(at), low, high);
      } else {
        const uint32_t both = *reinterpret_cast<const uint32_t*>(at);
        low = ptx::lowOf<Bf16>(both);
        high = ptx::highOf<Bf16>(both);
      }
      sums[t][0] = bounded(low) + (t > 0 ? sums[t - 1][0] : 0.f);
      sums[t][1] = bounded(high) + (t > 0 ? sums[t - 1][1] : 0.f);
      if constexpr (kLogs) *wordOf(to, channel, part * kTokens + t, me) = packHalves(bounded(low), bounded(high));
    }
    float before[2] = {0, 0}, total[2] = {0, 0};
    SEQPAR_UNROLL
    for (int i = 0; i < kParts; ++i) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float other = ptx::shfl(sums[kTokens - 1][e], i * kPairs + me.lane % kPairs);
        before[e] += i < part ? other : 0.f;
        total[e] += other;
      }
    }
    if constexpr (!kLogs) {
      SEQPAR_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        *wordOf(to, channel, part * kTokens + t, me) =
            Decays::stepsOf(before[0] + sums[t][0]) | Decays::stepsOf(before[1] + sums[t][1]) << 16;
      }
    }
    if (part == 0) ptx::storePair(to.totals + channel, total[0], total[1]);
    return total[0] >= kLeastTotal && total[1] >= kLeastTotal;
  }
};

/// The producers' part of the sweep, with gates one chunk ahead, keys and values two chunks ahead. Stores the decays
/// for the chunks' gradients. Returns whether this thread found the segment's decays mild; unless Producer::kLogs, it
/// stops after a first chunk with strong decays, as the consumers do.
template <class Producer, int kHeads, class T>
SEQPAR_DEVICE bool sweepChannels(const Task& task, const Item<T>& item, const Half& place) {
  using Memory = ChannelMemory<T, kHeads>;
  using Decays = ChannelDecays<T>;
  using Gates = SweptGates<T, kHeads>;
  const auto fetchTiles = [&](int chunk) {
    if (chunk < item.chunks) opaqueMemory<Memory>().fetchSwept(task, item, chunk, place.opaque());
    ptx::cpAsyncCommitGroup();
  };
  const auto fetchGates = [&](int chunk) {
    if (chunk < item.chunks) {
      Gates::fetch(opaqueMemory<Memory>().sweptGates(chunk), task, item, chunk, place.opaque());
    }
    ptx::cpAsyncCommitGroup();
  };
  bool mild = true;
  if (item.chunks == 0) return mild;
  fetchTiles(0);
  fetchGates(0);
  fetchTiles(1);
  for (int i = 0; i < item.chunks; ++i) {
    fetchGates(i + 1);
    Memory& memory = opaqueMemory<Memory>();
    ptx::cpAsyncWaitGroup<2>();  // except for the tiles and the gates of the next chunk
    ptx::syncwarp();
    const Half me = place.opaque();
    typename Decays::Sums& sums = memory.decays.sums[i % 2];
    mild = Gates::template addUp<Producer::kLogs>(task, memory.sweptGates(i), sums, me) && mild;
    if (!Producer::kLogs && i == 0 && !ptx::syncthreadsAnd(mild)) {
      ptx::cpAsyncWaitGroup<0>();
      return false;
    }
    if (me.thread == 0) ptx::cpAsyncBulkWaitGroupRead<0>();  // the next chunk's sums overwrite the previous chunk's
    warpgroup::fenceProxyAsync();
    Roles::syncProducers();
    if (me.thread == 0) {
      ptx::cpAsyncBulkStore(Decays::kept(task, i), &sums, kDecaySumsBytes);
      ptx::cpAsyncBulkCommitGroup();
    }
    Producer::scaleSwept(i, memory, me.opaque());
    warpgroup::fenceProxyAsync();
    Roles::arrivePrepared(i);
    if (i > 0) Roles::awaitDone(i - 1);
    fetchTiles(i + 2);
  }
  Roles::awaitDone(item.chunks - 1);
  if (place.thread == 0) ptx::cpAsyncBulkWaitGroup();
  return mild;
}

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

  SEQPAR_DEVICE static bool sweep(const Task& task, const Item<T>& item, const Half& me) {
    return sweepChannels<ChannelProducer, kHeads>(task, item, me);
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
          qs[j][i] = pack(ptx::lowOf<T>(qs[j][i]) * (ofQueries * low), ptx::highOf<T>(qs[j][i]) * (ofQueries * high));
          ks[j][i] = pack(ptx::lowOf<T>(ks[j][i]) * (ofKeys * ptx::rcpApprox(low)),
                          ptx::highOf<T>(ks[j][i]) * (ofKeys * ptx::rcpApprox(high)));
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
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      if (t < rows) storeNumbers(to, offset, sum);
      offset += to.token;
      if (t < kTokens - 1) addNumbers<-1>(sum, at(first + t));
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
