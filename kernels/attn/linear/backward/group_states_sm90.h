// dq and dk of a chunk for groups of heads (group_sm90.h): one warpgroup each. Terms of the states of all heads are
// added in accumulators, because the factors of rows multiply dOut and v.
#pragma once

#include "kernels/attn/linear/backward/group_images_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, class Shape>
struct GroupStates {
  using Memory = GroupMemory<T, Shape>;
  using Parts = GroupParts<Shape>;
  using Images = GroupImages<T, Shape>;
  using Words = typename Images::Words;
  static constexpr int kTiles8 = Shape::kColumns / 16;  ///< of half of the columns
  static constexpr int kKeyTiles8 = Shape::kKeys / 8;
  using Pipe = StagesOf<Memory::kStages>;

  /// x: of half kWhich of the columns.
  template <int kWhich>
  SEQPAR_DEVICE static void addProducts(float (&rows)[2], const float (&x)[kTiles8][4], const Words& words) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      const int tile = kWhich * kTiles8 + n;
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const uint32_t word = words[tile / 2][tile % 2 * 2 + r];
        rows[r] += ptx::lowOf<T>(word) * x[n][r * 2];
        rows[r] += ptx::highOf<T>(word) * x[n][r * 2 + 1];
      }
    }
  }

  using Wide = typename Images::Wide;
  SEQPAR_DEVICE static void addProduct(Wide& x, const Words& words, const T* state) {
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int step = 0; step < Images::kSteps; ++step) Images::addStep(x, words[step], state, step);
    warpgroup::commit();
  }
  SEQPAR_DEVICE static void clear(Wide& x) {
    SEQPAR_UNROLL
    for (int n = 0; n < kKeyTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) x[n][e] = 0;
    }
  }
  /// x += factors of rows times a product with a state, where a factor of 0 discards NaN and infinity.
  SEQPAR_DEVICE static void addExactly(Wide& x, const T* tile, const T* state, const float (&by)[2]) {
    SEQPAR_UNROLL
    for (int part = 0; part < Shape::kKeys / 32; ++part) {
      float own[4][4];
      warpgroup::arrive();
      Images::multiplyPart(own, tile, state, part);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(own);
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) x[part * 4 + n][e] += times(by[e / 2], own[n][e]);
      }
    }
  }
  /// Adds the state's term to dq, and the row sums of q times it to `rows`; computes a part of the sum of S E.
  template <bool kLittle>
  SEQPAR_DEVICE static void stateTerms(Wide& dq, float (&rows)[2], float& carry, const T* q, const T* dOut,
                                       const T* state, const T* after, const float (&by)[2], const GroupPosition& me) {
    Words words;
    Images::load(words, dOut, me);  // before products, because loads after them wait for their operands
    float outputs[kTiles8][4];
    warpgroup::arrive();
    Images::multiply(outputs, q, state, 0);
    warpgroup::commit();
    Images::scale(words, by);
    if constexpr (kLittle) {
      warpgroup::fenceOperand(dq);
      addProduct(dq, words, state);
    }
    warpgroup::wait<kLittle ? 1 : 0>();
    warpgroup::fenceOperand(outputs);
    addProducts<0>(rows, outputs, words);
    warpgroup::fenceOperand(outputs);
    warpgroup::arrive();
    Images::multiply(outputs, q, state, kTiles8 * 8);
    warpgroup::commit();
    carry = product<0>(state, after, me);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(outputs);
    addProducts<1>(rows, outputs, words);
    if constexpr (kLittle) {
      warpgroup::fenceOperand(dq);
    } else {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) rows[r] = by[r] == 0 ? 0.f : rows[r];
      addExactly(dq, dOut, state, by);
    }
  }
  /// Calls add(x, memory, pipe, q, position) for each part of the heads of each chunk, adds the scores' term to x, the
  /// sum of dA times the tile of k or q, and stores x in `to`. kSums: the terms of dA.
  template <auto kSums, class Add>
  SEQPAR_DEVICE static void eachHead(const GroupTask& task, const Target& to, T (Memory::*tile)[Memory::kTileOfKeys],
                                     const Add& add) {
    const GroupPosition place = GroupPosition::own();
    Pipe pipe;
    int shared = 0;
    eachChunk<Shape>(task, [&](const GroupItem& item) {
      awaitPhase(opaqueMemory<Memory>().shared, shared);
      shared ^= 1;
      Wide x;
      clear(x);
      const int keysAt = Memory::keysAt(item);
      for (int h = 0; h < Parts::countOf(task); ++h) {
        const GroupPosition me = place.copy();
        Memory& memory = opaqueMemory<Memory>();
        awaitPhase(memory.full[pipe.stage], pipe.parity);
        add(x, memory, pipe, memory.q + keysAt, me);
        finishHead(memory, pipe, me);
        pipe.next();
      }
      ptx::barrierSync<kOfTotal, 4 * warpgroup::kThreads>();
      warpgroup::arrive();
      warpgroup::multiplyAll<T, kSums, Terms::Rows, 4>(x, Operand{opaqueMemory<Memory>().matrix}, kChunk,
                                                       Operand{opaqueMemory<Memory>().*tile + keysAt, kTilePanelBytes},
                                                       kChunk, true);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(x);
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
      write(x, task, to, item, place.copy());
    });
  }
  /// dq: terms of the states of all heads, then of the scores.
  SEQPAR_DEVICE static void queries(const GroupTask& task) {
    const auto add = [](Wide& dq, Memory& memory, const Pipe& pipe, const T* q, const GroupPosition& me) {
      auto& stage = memory.stages[pipe.stage];
      const auto& factors = memory.factors[pipe.slot()];
      float rows[2] = {0, 0}, carry;
      const float by[2] = {factors.fromStart[me.row], factors.fromStart[me.row + 8]};
      if (factors.areLittle()) {
        stateTerms<true>(dq, rows, carry, q, stage.dOut, stage.before, stage.after, by, me);
      } else {
        stateTerms<false>(dq, rows, carry, q, stage.dOut, stage.before, stage.after, by, me);
      }
      storeRowSums(memory.sums[pipe.slot()].states, rows, me);
      storeCarry(memory.sums[pipe.slot()].carry[0], carry, me);
    };
    eachHead<Terms::AlongRows>(task, task.dq, &Memory::k, add);
  }
  /// dk: the same.
  SEQPAR_DEVICE static void keys(const GroupTask& task) {
    const auto add = [](Wide& dk, Memory& memory, const Pipe& pipe, const T*, const GroupPosition& me) {
      auto& stage = memory.stages[pipe.stage];
      const auto& factors = memory.factors[pipe.slot()];
      const float by[2] = {factors.toEnd[me.row] * factors.gate(me.row),
                           factors.toEnd[me.row + 8] * factors.gate(me.row + 8)};
      float sum;
      if (factors.areLittle()) {
        Words words;
        Images::load(words, stage.v, me);
        Images::scale(words, by);
        warpgroup::fenceOperand(dk);
        addProduct(dk, words, stage.after);
        sum = product<1>(stage.before, stage.after, me);
        warpgroup::wait<0>();
        warpgroup::fenceOperand(dk);
      } else {
        addExactly(dk, stage.v, stage.after, by);
        sum = product<1>(stage.before, stage.after, me);
      }
      storeCarry(memory.sums[pipe.slot()].carry[1], sum, me);
    };
    eachHead<Terms::Rows>(task, task.dkOut, &Memory::q, add);
  }
  /// A part of the sum of S E over half kWhich of their elements, in the lanes on the diagonal: the diagonal of
  /// products of 8 by 16 with 16 by 8 elements.
  template <int kWhich>
  SEQPAR_DEVICE static float product(const T* before, const T* after, const GroupPosition& me) {
    constexpr int kSteps = Shape::kElements / 1024;
    float c[4] = {0, 0, 0, 0};
    const int first = (me.warp * 32 + me.lane) * 8;
    SEQPAR_UNROLL
    for (int i = kSteps * kWhich / 2; i < kSteps * (kWhich + 1) / 2; ++i) {
      uint32_t a[4], b[4];
      ptx::load(a, before + first + i * 1024);
      ptx::load(b, after + first + i * 1024);
      const uint32_t left[4] = {a[0], 0, a[1], 0}, right[4] = {a[2], 0, a[3], 0};
      ptx::mmaM16N8K16<T>(c, left, b[0], b[1]);
      ptx::mmaM16N8K16<T>(c, right, b[2], b[3]);
    }
    return me.g % 2 == 0 ? c[0] : c[1];
  }
  /// Stores the sums of lanes on the diagonal. The warp of gates adds them, and has more time.
  SEQPAR_DEVICE static void storeCarry(float (&to)[4 * Memory::kCarryLanes], float sum, const GroupPosition& me) {
    constexpr int kLanes = Memory::kCarryLanes;
    if constexpr (kLanes == 4) sum += ptx::shflXor(sum, 31);  // of two lanes on the diagonal
    if (me.c == me.g / 2 && me.g < kLanes) to[me.warp * kLanes + me.g] = sum;
  }
  /// Stores 4 columns of two tiles at a time, so that four lanes store 32 bytes, without shared memory: the next item's
  /// queries and keys are loaded meanwhile.
  SEQPAR_DEVICE static void write(const Wide& x, const GroupTask& task, const Target& to, const GroupItem& item,
                                  const GroupPosition& me) {
    if (to.data == nullptr) return;
    const int firstChannel = item.block * Shape::kKeys, channels = task.dk - firstChannel;
    const bool odd = me.c % 2 != 0;
    uint16_t* row = static_cast<uint16_t*>(to.data) + item.sequence * to.batch + (item.token + me.row) * to.token +
                    item.head / task.group * to.head + firstChannel + (odd ? 8 : 0) + me.c / 2 * 4;
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      SEQPAR_UNROLL
      for (int n = 0; n < kKeyTiles8; n += 2) {
        const uint32_t first = ptx::pack<T>(x[n][r * 2], x[n][r * 2 + 1]),
                       second = ptx::pack<T>(x[n + 1][r * 2], x[n + 1][r * 2 + 1]);
        const uint32_t other = asBits(ptx::shflXor(asFloat(odd ? first : second), 1));
        if (me.row + r * 8 < item.rows && (n + odd) * 8 < channels) {
          put(to, row + n * 8, odd ? other : first, odd ? second : other);
        }
      }
      row += 8 * to.token;
    }
  }
  SEQPAR_DEVICE static void put(const Target& to, uint16_t* at, uint32_t first, uint32_t second) {
    if (to.wide) {
      ptx::storeStreaming(reinterpret_cast<float*>(at), asFloat(first), asFloat(second));
    } else {
      at[0] = static_cast<uint16_t>(first);
      at[1] = static_cast<uint16_t>(first >> 16);
      at[2] = static_cast<uint16_t>(second);
      at[3] = static_cast<uint16_t>(second >> 16);
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
