// Scores of a chunk, their gradients and dv, for groups of heads (group_sm90.h). Two warpgroups: each has the columns
// of 32 keys of a matrix of 64 x 64 tokens, and 32 columns of dv, or with 80 columns also 8 of the last 16.
#pragma once

#include "kernels/attn/linear/backward/group_images_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, class Shape>
struct GroupScores {
  using Memory = GroupMemory<T, Shape>;
  using Parts = GroupParts<Shape>;
  using Images = GroupImages<T, Shape>;
  static constexpr int kTiles8 = Shape::kColumns / 16;  ///< of dv: the last one is of the second panel, if there is one
  static constexpr bool kWide = Shape::kWide;
  using Values = float[kTiles8][4];
  using Pairs = uint32_t[4][4];  ///< Factors::pairs of this thread's keys
  using Pipe = StagesOf<Memory::kStages>;

  /// Scores between the chunk's tokens, and dv: columns of 32 keys, then of 32 or 40 values.
  SEQPAR_DEVICE static void run(const GroupTask& task) {
    const GroupPosition place = GroupPosition::own();
    Pipe pipe;
    int shared = 0, odd = 0;
    eachChunk<Shape>(task, [&](const GroupItem& item) {
      awaitPhase(opaqueMemory<Memory>().shared, shared);
      shared ^= 1;
      float scores[4][4], total[4][4];
      computeScores(scores, place.copy());
      clearAbove(scores, place.copy());
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) total[n][e] = 0;
      }
      for (int h = 0; h < Parts::countOf(task); ++h) {
        const GroupPosition me = place.copy();
        awaitPhase(opaqueMemory<Memory>().full[pipe.stage], pipe.parity);
        if (Memory::hasValues(item, h)) {
          addHead(total, scores, odd, task, item, h, pipe, me);
          odd ^= 1;
        } else {
          addTotal(total, task.scale, pipe, me);
        }
        pipe.next();
      }
      clearAbove(total, place.copy());
      awaitPhase(opaqueMemory<Memory>().multiplied, odd ^ 1);
      storeTotal(total, place.copy());
      warpgroup::fenceProxyAsync();
      ptx::barrierSync<kOfTotal, 4 * warpgroup::kThreads>();
      if (storesBox(task, item)) storeBox(task, item, lastPart(task, item), odd ^ 1);
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
    });
    ptx::cpAsyncBulkWaitGroup();
  }
  /// The last part: the item computes its dv.
  SEQPAR_DEVICE static int lastPart(const GroupTask& task, const GroupItem& item) {
    return Memory::kKeyBlocks == 1 ? Parts::countOf(task) - 1 : Parts::countOf(task) - 2 + item.block;
  }
  /// Whether this thread stores dv of the item, with the TMA.
  SEQPAR_DEVICE static bool storesBox(const GroupTask& task, const GroupItem& item) {
    return ptx::thread() == 0 && task.storesBoxes && item.rows == kChunk;
  }
  /// Starts to store dv of a part, after a barrier of all threads that have stored it.
  SEQPAR_DEVICE static void storeBox(const GroupTask& task, const GroupItem& item, int part, int odd) {
    Memory& memory = opaqueMemory<Memory>();
    const int head = item.head + Parts::headOf(task, part), token = static_cast<int>(item.token);
    ptx::tmaStore(task.dvBox, ptx::sharedAddress(memory.out[odd]), Parts::panelOf(task, part) * kPanel, head, token,
                  item.sequence);
    if constexpr (kWide) {
      ptx::tmaStore(task.dvRestBox, ptx::sharedAddress(memory.others[odd]), kPanel, head, token, item.sequence);
    }
    ptx::cpAsyncBulkCommitGroup();
  }
  /// Adds dA of a part of the group's heads to `total`, and computes its dv.
  SEQPAR_DEVICE static void addHead(float (&total)[4][4], const float (&scores)[4][4], int odd, const GroupTask& task,
                                    const GroupItem& item, int part, const Pipe& pipe, const GroupPosition& me) {
    Memory& memory = opaqueMemory<Memory>();
    auto& stage = memory.stages[pipe.stage];
    const auto& factors = memory.factors[pipe.slot()];
    auto& sums = memory.sums[pipe.slot()];
    // Before products, because loads after them wait for their operands.
    const bool little = factors.areLittle();
    const float fromStart[2] = {factors.fromStart[me.row], factors.fromStart[me.row + 8]};
    const float toEnd[2] = {factors.toEnd[me.row], factors.toEnd[me.row + 8]};
    Pairs pairs;
    loadPairs(pairs, factors, me);
    float dA[4][4];
    Values ofState;
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, Images::kSteps>(
        dA, Operand{stage.dOut}, kChunk, Operand{stage.v + me.group * 32 * kPanel}, kChunk, false);
    warpgroup::commit();
    Images::multiply(ofFirstPanel(ofState), memory.k + Memory::keysAt(item), stage.after, me.group * 32);
    if constexpr (Memory::kKeyBlocks > 1) {
      Images::multiply(ofFirstPanel(ofState), memory.k + Memory::keysAt(item, true), stage.after + Shape::kElements,
                       me.group * 32, true);
    }
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dA);
    uint32_t words[2][4];
    float ofQueries[2] = {0, 0};
    if (little) {
      decay<true, true>(words, ofQueries, total, scores, dA, factors, fromStart, pairs, task.scale, me);
    } else {
      decay<false, true>(words, ofQueries, total, scores, dA, factors, fromStart, pairs, task.scale, me);
    }
    if constexpr (kWide) {  // not earlier, when its registers would be too many
      warpgroup::arrive();
      Images::multiply(ofSecondPanel(ofState), memory.k, stage.after, kPanel + me.group * 8);
      warpgroup::commit();
    }
    awaitPhase(memory.multiplied, odd ^ 1);  // by both warpgroups, with the head before
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) ptx::stmatrixX4(me.at(memory.matrix, me.group * 4 + n * 2), words[n]);
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) ptx::ldmatrixX4(words[n], me.at(stage.v, me.group * 4 + n * 2));
    if (ptx::thread() == 0) ptx::cpAsyncBulkWaitGroupRead<0>();  // this head's dv replaces what the TMA read
    const float gates[2] = {factors.gate(me.row), factors.gate(me.row + 8)};
    warpgroup::fenceProxyAsync();
    ptx::barrierSync<kOfScores, 2 * warpgroup::kThreads>();
    Values dv;  // another accumulator, so that the product does not wait until the state's terms have decayed
    warpgroup::arrive();
    multiplyOutputs(dv, memory.matrix, stage.dOut, me);
    warpgroup::commit();
    // The barrier is after the threads' stores of dv of the head before, and after their fences.
    if (part >= Memory::kKeyBlocks && storesBox(task, item)) storeBox(task, item, part - Memory::kKeyBlocks, odd ^ 1);
    warpgroup::wait<1>();
    warpgroup::fenceOperand(ofState);
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) ofState[n][e] = times(toEnd[e / 2], ofState[n][e]);
    }
    warpgroup::fenceOperand(ofState);  // decays while the product is computed
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
    arriveWarp(memory.multiplied, me);
    float rows[2] = {0, 0};
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        dv[n][r * 2] += ofState[n][r * 2];
        dv[n][r * 2 + 1] += ofState[n][r * 2 + 1];
        const uint32_t word =
            n < 4 ? words[n / 2 % 2][n % 2 * 2 + r] : *pairOf(stage.v + kTilePanel, me.row + r * 8, me.group, me);
        rows[r] += ptx::lowOf<T>(word) * dv[n][r * 2];
        rows[r] += ptx::highOf<T>(word) * dv[n][r * 2 + 1];
      }
    }
    storeRowSums(sums.queries[me.group], ofQueries, sums.values[me.group], rows, me);
    finishHead(memory, pipe, me);
    storeValues(dv, gates, odd, task, item, part, memory, me);
  }
  /// Adds dA only.
  SEQPAR_DEVICE static void addTotal(float (&total)[4][4], float scale, const Pipe& pipe, const GroupPosition& me) {
    Memory& memory = opaqueMemory<Memory>();
    auto& stage = memory.stages[pipe.stage];
    const auto& factors = memory.factors[pipe.slot()];
    const bool little = factors.areLittle();
    const float fromStart[2] = {factors.fromStart[me.row], factors.fromStart[me.row + 8]};
    Pairs pairs;
    loadPairs(pairs, factors, me);
    float dA[4][4];
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, Images::kSteps>(
        dA, Operand{stage.dOut}, kChunk, Operand{stage.v + me.group * 32 * kPanel}, kChunk, false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dA);
    uint32_t words[2][4];
    float rows[2];
    if (little) {
      decay<true, false>(words, rows, total, dA, dA, factors, fromStart, pairs, scale, me);
    } else {
      decay<false, false>(words, rows, total, dA, dA, factors, fromStart, pairs, scale, me);
    }
    finishHead(memory, pipe, me);
  }
  /// Starts dv = the transpose of `matrix` times dOut.
  SEQPAR_DEVICE static void multiplyOutputs(Values& dv, const T* matrix, const T* dOut, const GroupPosition& me) {
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(ofFirstPanel(dv), Operand{matrix}, kChunk,
                                                           Operand{dOut + me.group * 32}, kChunk, false);
    if constexpr (kWide) {
      warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(ofSecondPanel(dv), Operand{matrix}, kChunk,
                                                             Operand{dOut + kTilePanel + me.group * 8}, kChunk, false);
    }
  }
  /// The accumulators of a panel's columns: products of both at once would serialize those of each (ptxas C7511).
  SEQPAR_DEVICE static auto& ofFirstPanel(Values& dv) { return reinterpret_cast<float(&)[4][4]>(dv[0]); }
  SEQPAR_DEVICE static auto& ofSecondPanel(Values& dv) { return reinterpret_cast<float(&)[1][4]>(dv[4]); }
  SEQPAR_DEVICE static void computeScores(float (&scores)[4][4], const GroupPosition& me) {
    Memory& memory = opaqueMemory<Memory>();
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, Memory::kKeyBlocks * Images::kKeySteps>(
        scores, Operand{memory.q}, kChunk, Operand{memory.k + me.group * 32 * kPanel}, kChunk, false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(scores);
  }
  /// Zeroes elements of keys after the query.
  SEQPAR_DEVICE static void clearAbove(float (&x)[4][4], const GroupPosition& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (distance(n, e, me) < 0) x[n][e] = 0;
      }
    }
  }
  SEQPAR_DEVICE static void storeTotal(const float (&total)[4][4], const GroupPosition& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; n += 2) {
      uint32_t words[4];
      packTiles<T>(words, total, n);
      ptx::stmatrixX4(me.at(opaqueMemory<Memory>().matrix, me.group * 4 + n), words);
    }
  }
  SEQPAR_DEVICE static void loadPairs(Pairs& pairs, const typename Memory::Factors& factors, const GroupPosition& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) ptx::load(pairs[n], factors.pairs[me.group * 16 + n * 4 + me.c]);
  }
  SEQPAR_DEVICE static int distance(int n, int e, const GroupPosition& me) {
    return me.row - me.group * 32 - me.c * 2 + (e / 2 * 8 - n * 8 - e % 2);
  }
  /// A as words, its product with dA added over the keys, and dA added to `total`; without kScores only the latter.
  template <bool kLittle, bool kScores>
  SEQPAR_DEVICE static void decay(uint32_t (&words)[2][4], float (&rows)[2], float (&total)[4][4],
                                  const float (&scores)[4][4], const float (&dA)[4][4],
                                  const typename Memory::Factors& factors, const float (&fromStart)[2],
                                  const Pairs& pairs, float scale, const GroupPosition& me) {
    float ofQueries[2];
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) ofQueries[r] = kLittle ? fromStart[r] : factors.sums[me.row + r * 8];
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      const int column = me.group * 32 + n * 8 + me.c * 2;
      float key[2], gate[2];
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        key[e] = asFloat(pairs[n][e]);
        gate[e] = asFloat(pairs[n][2 + e]);
      }
      if (!kLittle) ptx::loadPair(factors.sums + column, key[0], key[1]);
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float w[2];
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          if (kLittle) {
            w[e] = ofQueries[r] * key[e];
          } else {
            w[e] = distance(n, r * 2 + e, me) >= 0 ? scale * decayOf(ofQueries[r] - key[e]) : 0.f;
          }
        }
        const auto decayed = [&](int e, float x) { return kLittle ? w[e] * x : times(w[e], x); };
        const float low = dA[n][r * 2] * gate[0], high = dA[n][r * 2 + 1] * gate[1];
        if constexpr (kScores) {
          const uint32_t word = ptx::pack<T>(decayed(0, scores[n][r * 2]), decayed(1, scores[n][r * 2 + 1]));
          words[n / 2][n % 2 * 2 + r] = word;
          rows[r] += ptx::lowOf<T>(word) * low;
          rows[r] += ptx::highOf<T>(word) * high;
        }
        if (kLittle) {  // fmaf() also keeps the compiler from adding after the branch, from sixteen more registers
          total[n][r * 2] = fmaf(w[0], low, total[n][r * 2]);
          total[n][r * 2 + 1] = fmaf(w[1], high, total[n][r * 2 + 1]);
        } else {
          total[n][r * 2] += decayed(0, low);
          total[n][r * 2 + 1] += decayed(1, high);
        }
      }
    }
  }
  /// Stores dv to shared memory, and to device memory unless the TMA does.
  SEQPAR_DEVICE static void storeValues(const Values& dv, const float (&gates)[2], int odd, const GroupTask& task,
                                        const GroupItem& item, int part, Memory& memory, const GroupPosition& me) {
    const Target& to = task.dvOut;
    if (to.data == nullptr) return;
    T *out = memory.out[odd], *others = memory.others[odd];
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = dv[n * 2 + i / 2] + i % 2 * 2;
        words[i] = ptx::pack<T>(pair[0] * gates[i % 2], pair[1] * gates[i % 2]);
      }
      ptx::stmatrixX4(me.at(out, me.group * 4 + n * 2), words);
    }
    if constexpr (kWide) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<uint32_t*>(others + (me.row + r * 8) * 16 + me.group * 8 + me.c * 2) =
            ptx::pack<T>(dv[4][r * 2] * gates[r], dv[4][r * 2 + 1] * gates[r]);
      }
    }
    if (task.storesBoxes && item.rows == kChunk) return;
    ptx::syncwarp();
    uint16_t* data = static_cast<uint16_t*>(to.data) + item.sequence * to.batch + item.token * to.token +
                     (item.head + Parts::headOf(task, part)) * to.head + Parts::panelOf(task, part) * kPanel;
    const int row = me.warp * 16 + me.lane / 4, unit = me.group * 4 + me.lane % 4;
    const T* own = out + row * kPanel + (unit ^ row % 8) * 8;
    uint32_t units[2][4];
    ptx::load(units[0], own);
    ptx::load(units[1], own + 8 * kPanel);
    uint16_t* at = data + row * to.token + unit * 8;
    if (unit * 8 < task.dv) {
      if (row < item.rows) putUnit(to, at, units[0]);
      if (row + 8 < item.rows) putUnit(to, at + 8 * to.token, units[1]);
    }
    if (kWide && me.lane < 16) {
      const int last = me.warp * 16 + me.lane;
      uint32_t words[4];
      ptx::load(words, others + last * 16 + me.group * 8);
      if (last < item.rows) putUnit(to, data + last * to.token + kPanel + me.group * 8, words);
    }
    ptx::syncwarp();
  }
};

}  // namespace seqpar::attn::backward::sm90
