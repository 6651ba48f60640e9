// The producers' part of the sweep of the gradients' kernels for channel decays (swept_states_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/images_sm90.h"
#include "kernels/attn/linear/backward/rows_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// Gates of a chunk in the sweep, in shared memory, with the type of the input. Producers load them, consumers add
/// them. Each warp has 16 channels: a thread has two channels over a quarter of the tokens. Rows are swizzled so that
/// quarters use different banks.
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

/// A producer's loads of the sweep, each a group of cp.async.
template <class T, int kHeads>
struct SweepLoads {
  using Memory = ChannelMemory<T, kHeads>;
  const Task& task;
  const Item<T>& item;
  const Half& place;

  SEQPAR_DEVICE void tiles(int chunk) const {
    if (chunk < item.chunks) opaqueMemory<Memory>().fetchSwept(task, item, chunk, place.opaque());
    ptx::cpAsyncCommitGroup();
  }
  SEQPAR_DEVICE void gates(int chunk) const {
    if (chunk < item.chunks) {
      SweptGates<T, kHeads>::fetch(opaqueMemory<Memory>().sweptGates(chunk), task, item, chunk, place.opaque());
    }
    ptx::cpAsyncCommitGroup();
  }
};

/// The producers' part of the sweep, with gates and tiles two chunks ahead. Consumers add the gates of a chunk while
/// producers decay the keys of the chunk before it. Unless Producer::kLogs, both stop after a first chunk with strong
/// decays.
template <class Producer, int kHeads, class T>
SEQPAR_DEVICE void sweepChannels(const Task& task, const Item<T>& item, const Half& place) {
  const SweepLoads<T, kHeads> load{task, item, place};
  if (item.chunks == 0) return;
  load.gates(0);
  load.tiles(0);
  load.gates(1);
  load.tiles(1);
  ptx::cpAsyncWaitGroup<3>();
  Roles::arriveLoaded();
  if (!Producer::kLogs && !ptx::syncthreadsAnd(true)) {
    ptx::cpAsyncWaitGroup<0>();
    return;
  }
  for (int i = 0; i < item.chunks; ++i) {
    ptx::cpAsyncWaitGroup<1>();  // except for the tiles of the next chunk
    Roles::awaitSummed();        // also of all producers
    if (i + 1 < item.chunks) Roles::arriveLoaded();
    load.gates(i + 2);
    Producer::scaleSwept(i, opaqueMemory<ChannelMemory<T, kHeads>>(), place.opaque());
    warpgroup::fenceProxyAsync();
    Roles::arrivePrepared(i);
    if (i > 0) Roles::awaitDone(i - 1);
    load.tiles(i + 2);
  }
  Roles::awaitDone(item.chunks - 1);
}

/// The same with gates added by producers and loaded one chunk ahead, where consumers have no registers for them.
/// Returns whether this thread found the segment's decays mild.
template <class Producer, int kHeads, class T>
SEQPAR_DEVICE bool sweepAndAdd(const Task& task, const Item<T>& item, const Half& place) {
  using Memory = ChannelMemory<T, kHeads>;
  const SweepLoads<T, kHeads> load{task, item, place};
  bool mild = true;
  if (item.chunks == 0) return mild;
  load.tiles(0);
  load.gates(0);
  load.tiles(1);
  for (int i = 0; i < item.chunks; ++i) {
    load.gates(i + 1);
    Memory& memory = opaqueMemory<Memory>();
    ptx::cpAsyncWaitGroup<2>();  // except for the tiles and the gates of the next chunk
    ptx::syncwarp();
    const Half me = place.opaque();
    mild = SweptGates<T, kHeads>::template addUp<Producer::kLogs>(task, memory.sweptGates(i), memory.decays.sums[i % 2],
                                                                  me) &&
           mild;
    if (!Producer::kLogs && i == 0 && !ptx::syncthreadsAnd(mild)) {
      ptx::cpAsyncWaitGroup<0>();
      return false;
    }
    Roles::syncProducers();
    Producer::scaleSwept(i, memory, me.opaque());
    warpgroup::fenceProxyAsync();
    Roles::arrivePrepared(i);
    if (i > 0) Roles::awaitDone(i - 1);
    load.tiles(i + 2);
  }
  Roles::awaitDone(item.chunks - 1);
  return mild;
}

}  // namespace seqpar::attn::backward::sm90
