// Decays of a chunk for the sm_90 kernels, as base-2 logarithms summed over the tokens from the chunk's start, in
// shared memory.
#pragma once

#include "kernels/attn/linear/backward/tiles_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// Channel decays. Each warpgroup loads, adds and reads its own: [64 tokens][kOwn], in units of 8 elements, swizzled so
/// that neither adding nor reading has bank conflicts. In bf16 they are loaded row by row to the start of that memory.
template <class P>
struct ChannelSums {
  static constexpr int kOwn = P::kOwn, kUnits = kOwn / 8;
  static constexpr int kParts = kBlock / kOwn, kPartTokens = kChunk / kParts;  ///< a thread adds one part
  static constexpr int kLanes = 32 / kParts;  ///< of a warp, per part: as many channels

  float sums[kParts][kChunk * kOwn];
  float totals[kBlock];

  SEQPAR_DEVICE static int unitAt(int row, int unit) {
    return (unit ^ (row % kUnits) ^ (row / kPartTokens * (kLanes / 8))) % kUnits;
  }
  SEQPAR_DEVICE static int indexOf(int row, int column) {
    return row * kOwn + unitAt(row, column / 8) * 8 + column % 8;
  }

  template <class T>
  SEQPAR_DEVICE void fetch(const Task& task, const Item<T>& item, int64_t token, const P& me) {
    const int rows = item.rowsOf(token);
    char* to = reinterpret_cast<char*>(sums[me.group]);
    if (task.gateType == seqparBfloat16) {
      constexpr int kRows = warpgroup::kThreads / kUnits;
      const int first = me.inGroup / kUnits, column = me.firstColumn + me.inGroup % kUnits * 8;
      const char* from = item.gates + ((token + first) * task.gates.token + column) * 2;
      SEQPAR_UNROLL
      for (int i = 0; i < kChunk; i += kRows) {
        ptx::cpAsync16(to + i * kOwn * 2 + me.inGroup * 16, from, first + i < rows && column < item.keys);
        from += kRows * task.gates.token * 2;
      }
    } else {
      constexpr int kRows = warpgroup::kThreads / (kUnits * 2);
      const int first = me.inGroup / (kUnits * 2), unit = me.inGroup % (kUnits * 2), column = me.firstColumn + unit * 4;
      const char* from = item.gates + ((token + first) * task.gates.token + column) * 4;
      SEQPAR_UNROLL
      for (int i = 0; i < kChunk; i += kRows) {
        ptx::cpAsync16(to + indexOf(first + i, unit / 2 * 8) * 4 + unit % 2 * 16, from,
                       first + i < rows && column < item.keys);
        from += kRows * task.gates.token * 4;
      }
    }
  }
  /// Prefetches gates to the L2 cache.
  template <class T>
  SEQPAR_DEVICE static void prefetch(const Task& task, const Item<T>& item, int64_t token, int thread) {
    const int size = task.gateType == seqparBfloat16 ? 2 : 4, lines = kBlock * size / 128;
    const int row = thread / lines, byte = thread % lines * 128;
    if (row < kChunk && row < item.rowsOf(token) && byte < item.keys * size) {
      ptx::prefetch(item.gates + (token + row) * task.gates.token * size + byte);
    }
  }

  /// A thread adds one channel over one part of the tokens. Ends with Place::syncState().
  SEQPAR_DEVICE void addUp(const Task& task, const P& me) {
    const int lane = me.lane % kLanes, channel = me.warpIndex * kLanes + lane, part = me.lane / kLanes,
              first = part * kPartTokens;
    float* own = sums[me.group];
    float* ownAt[kUnits];  // of the part's tokens t, without their distance, by t % kUnits
    SEQPAR_UNROLL
    for (int t = 0; t < kUnits; ++t) ownAt[t] = own + indexOf(first + t, channel) - t * kOwn;
    float logs[kPartTokens];
    if (task.gateType == seqparBfloat16) {
      const auto* from = reinterpret_cast<const uint16_t*>(own);
      SEQPAR_UNROLL
      for (int t = 0; t < kPartTokens; ++t) logs[t] = ptx::lowOf<Bf16>(from[(first + t) * kOwn + channel]);
      warpgroup::sync(me.group);
    } else {
      SEQPAR_UNROLL
      for (int t = 0; t < kPartTokens; ++t) logs[t] = ownAt[t % kUnits][t * kOwn];
    }
    float sum = 0;
    SEQPAR_UNROLL
    for (int t = 0; t < kPartTokens; ++t) {
      sum += bounded(logs[t]);
      logs[t] = sum;
    }
    float before = 0, total = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const float other = ptx::shfl(sum, i * kLanes + lane);
      before += i < part ? other : 0.f;
      total += other;
    }
    SEQPAR_UNROLL
    for (int t = 0; t < kPartTokens; ++t) ownAt[t % kUnits][t * kOwn] = before + logs[t];
    if (part == 0) totals[me.firstColumn + channel] = total;
    me.syncState();
  }

  /// The sums of accumulator tile n, row `row` + 8 r.
  SEQPAR_DEVICE void load(float& low, float& high, int n, int r, const P& me) const {
    const int row = me.row + r * 8;
    ptx::loadPair(sums[me.group] + row * kOwn + unitAt(row, n) * 8 + me.c * 2, low, high);
  }
  SEQPAR_DEVICE float total(int channel) const { return totals[channel]; }
};

/// Token decays, in one warp: elements 2 lane and 2 lane + 1 of the chunk.
struct TokenLogs {
  float log[2];

  /// `which`: of the item's heads.
  template <class T>
  SEQPAR_DEVICE void load(const Task& task, const Item<T>& item, int64_t token, int lane, int which = 0) {
    const int rows = item.rowsOf(token);
    const auto* gates = reinterpret_cast<const float*>(item.gates);
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = lane * 2 + i;
      log[i] = 0;
      if (row < rows && task.gate == Gate::Head) log[i] = gates[which];
      if (row < rows && task.gate == Gate::Token) {
        log[i] = gates[(token + row) * task.gates.token + which * task.gates.head];
      }
    }
  }
  SEQPAR_DEVICE void addUp(float* sums, uint8_t* forgets, int lane) const {
    float own[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      own[i] = bounded(log[i]);
      forgets[lane * 2 + i] = own[i] < kForgottenLog2 ? 1 : 0;
    }
    float before = own[0] + own[1];
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = ptx::shfl(before, lane - distance);
      if (lane >= distance) before += other;
    }
    sums[lane * 2] = before - own[1];
    sums[lane * 2 + 1] = before;
  }
};

}  // namespace seqpar::attn::backward::sm90
