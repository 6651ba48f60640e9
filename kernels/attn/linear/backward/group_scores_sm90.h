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
  using Pipe = StagesOf<Memory::kStages>;

  /// Scores between the chunk's tokens, and dv: columns of 32 keys, then of 32 or 40 values.
  SEQPAR_DEVICE static void run(const GroupTask& task) {
    const GroupPosition place;
    Pipe pipe;
    int shared = 0, odd = 0;
    eachChunk<Shape>(task, [&](const GroupItem& item) {
      awaitPhase(opaqueMemory<Memory>().shared, shared);
      shared ^= 1;
      float scores[4][4], total[4][4];
      computeScores(scores, place.opaque());
      clearAbove(scores, place.opaque());
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) total[n][e] = 0;
      }
      for (int h = 0; h < Parts::countOf(task); ++h) {
        const GroupPosition me = place.opaque();
        awaitPhase(opaqueMemory<Memory>().full[pipe.stage], pipe.parity);
        if (Memory::hasValues(item, h)) {
          addHead(total, scores, odd, task, item, h, pipe, me);
          odd ^= 1;
        } else {
          addTotal(total, task.scale, pipe, me);
        }
        pipe.next();
      }
      clearAbove(total, place.opaque());
      storeTotal(total, place.opaque());
      warpgroup::fenceProxyAsync();
      ptx::barrierSync<kOfTotal, 4 * warpgroup::kThreads>();
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
    });
  }
  /// Adds dA of a part of the group's heads to `total`, and computes its dv.
  SEQPAR_DEVICE static void addHead(float (&total)[4][4], const float (&scores)[4][4], int odd, const GroupTask& task,
                                    const GroupItem& item, int part, const Pipe& pipe, const GroupPosition& me) {
    Memory& memory = opaqueMemory<Memory>();
    auto& stage = memory.stages[pipe.stage];
    const auto& factors = memory.factors[pipe.slot()];
    auto& sums = memory.sums[pipe.slot()];
    T* matrix = memory.matrices[odd];
    float dA[4][4];
    Values dv;
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, Images::kSteps>(
        dA, Operand{stage.dOut}, kChunk, Operand{stage.v + me.group * 32 * kPanel}, kChunk, false);
    warpgroup::commit();
    Images::multiply(ofFirstPanel(dv), memory.k + Memory::keysAt(item), stage.after, me.group * 32);
    if constexpr (Memory::kKeyBlocks > 1) {
      Images::multiply(ofFirstPanel(dv), memory.k + Memory::keysAt(item, true), stage.after + Shape::kElements,
                       me.group * 32, true);
    }
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dA);
    uint32_t words[2][4];
    float rows[2] = {0, 0};
    if (factors.areLittle()) {
      decay<true, true>(words, rows, total, scores, dA, factors, task.scale, me);
    } else {
      decay<false, true>(words, rows, total, scores, dA, factors, task.scale, me);
    }
    if constexpr (kWide) {  // not earlier, when its registers would be too many
      warpgroup::arrive();
      Images::multiply(ofSecondPanel(dv), memory.k, stage.after, kPanel + me.group * 8);
      warpgroup::commit();
    }
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) ptx::stmatrixX4(me.at(matrix, me.group * 4 + n * 2), words[n]);
    storeRowSums(sums.queries[me.group], rows, me);
    warpgroup::fenceProxyAsync();
    ptx::barrierSync<kOfScores, 2 * warpgroup::kThreads>();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
    const float toEnd[2] = {factors.toEnd[me.row], factors.toEnd[me.row + 8]};
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) dv[n][e] = times(toEnd[e / 2], dv[n][e]);
    }
    warpgroup::fenceOperand(dv);
    warpgroup::arrive();
    addOutputs(dv, matrix, stage.dOut, me);
    warpgroup::commit();
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) ptx::ldmatrixX4(words[n], me.at(stage.v, me.group * 4 + n * 2));
    const float gates[2] = {factors.gates[me.row], factors.gates[me.row + 8]};
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
    rows[0] = rows[1] = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const uint32_t word =
            n < 4 ? words[n / 2 % 2][n % 2 * 2 + r] : *pairOf(stage.v + kTilePanel, me.row + r * 8, me.group, me);
        rows[r] += ptx::lowOf<T>(word) * dv[n][r * 2];
        rows[r] += ptx::highOf<T>(word) * dv[n][r * 2 + 1];
      }
    }
    storeRowSums(sums.values[me.group], rows, me);
    finishHead(memory, pipe, me);
    writeValues(dv, gates, task, item, part, memory, me);
  }
  /// Adds dA only.
  SEQPAR_DEVICE static void addTotal(float (&total)[4][4], float scale, const Pipe& pipe, const GroupPosition& me) {
    Memory& memory = opaqueMemory<Memory>();
    auto& stage = memory.stages[pipe.stage];
    const auto& factors = memory.factors[pipe.slot()];
    float dA[4][4];
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, Images::kSteps>(
        dA, Operand{stage.dOut}, kChunk, Operand{stage.v + me.group * 32 * kPanel}, kChunk, false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dA);
    uint32_t words[2][4];
    float rows[2];
    if (factors.areLittle()) {
      decay<true, false>(words, rows, total, dA, dA, factors, scale, me);
    } else {
      decay<false, false>(words, rows, total, dA, dA, factors, scale, me);
    }
    finishHead(memory, pipe, me);
  }
  /// Starts dv += the transpose of `matrix` times dOut.
  SEQPAR_DEVICE static void addOutputs(Values& dv, const T* matrix, const T* dOut, const GroupPosition& me) {
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(ofFirstPanel(dv), Operand{matrix}, kChunk,
                                                           Operand{dOut + me.group * 32}, kChunk, true);
    if constexpr (kWide) {
      warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(ofSecondPanel(dv), Operand{matrix}, kChunk,
                                                             Operand{dOut + kTilePanel + me.group * 8}, kChunk, true);
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
      ptx::stmatrixX4(me.at(opaqueMemory<Memory>().out, me.group * 4 + n), words);
    }
  }
  SEQPAR_DEVICE static int distance(int n, int e, const GroupPosition& me) {
    return me.row - me.group * 32 - me.c * 2 + (e / 2 * 8 - n * 8 - e % 2);
  }
  /// A as words, its product with dA added over the keys, and dA added to `total`; without kScores only the latter.
  template <bool kLittle, bool kScores>
  SEQPAR_DEVICE static void decay(uint32_t (&words)[2][4], float (&rows)[2], float (&total)[4][4],
                                  const float (&scores)[4][4], const float (&dA)[4][4],
                                  const typename Memory::Factors& factors, float scale, const GroupPosition& me) {
    const float* queries = kLittle ? factors.fromStart : factors.sums;
    const float* keys = kLittle ? factors.inverses : factors.sums;
    const float ofQueries[2] = {queries[me.row], queries[me.row + 8]};
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      const int column = me.group * 32 + n * 8 + me.c * 2;
      float key[2], gate[2];
      ptx::loadPair(keys + column, key[0], key[1]);
      ptx::loadPair(factors.gates + column, gate[0], gate[1]);
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
  SEQPAR_DEVICE static void writeValues(const Values& dv, const float (&gates)[2], const GroupTask& task,
                                        const GroupItem& item, int part, Memory& memory, const GroupPosition& me) {
    const Target& to = task.dvOut;
    if (to.data == nullptr) return;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = dv[n * 2 + i / 2] + i % 2 * 2;
        words[i] = ptx::pack<T>(pair[0] * gates[i % 2], pair[1] * gates[i % 2]);
      }
      ptx::stmatrixX4(me.at(memory.out, me.group * 4 + n * 2), words);
    }
    if constexpr (kWide) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<uint32_t*>(memory.others + (me.row + r * 8) * 16 + me.group * 8 + me.c * 2) =
            ptx::pack<T>(dv[4][r * 2] * gates[r], dv[4][r * 2 + 1] * gates[r]);
      }
    }
    ptx::syncwarp();
    uint16_t* data = static_cast<uint16_t*>(to.data) + item.sequence * to.batch + item.token * to.token +
                     (item.head + Parts::headOf(task, part)) * to.head + Parts::panelOf(task, part) * kPanel;
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = me.warp * 16 + i * 8 + me.lane / 4, unit = me.group * 4 + me.lane % 4;
      uint32_t words[4];
      ptx::load(words, memory.out + row * kPanel + (unit ^ row % 8) * 8);
      if (row < item.rows && unit * 8 < task.dv) putUnit(to, data + row * to.token + unit * 8, words);
    }
    if (kWide && me.lane < 16) {
      const int row = me.warp * 16 + me.lane;
      uint32_t words[4];
      ptx::load(words, memory.others + row * 16 + me.group * 8);
      if (row < item.rows) putUnit(to, data + row * to.token + kPanel + me.group * 8, words);
    }
    ptx::syncwarp();
  }
};

}  // namespace seqpar::attn::backward::sm90
