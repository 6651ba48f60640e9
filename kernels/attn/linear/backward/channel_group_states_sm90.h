// dq, dk and the terms of the gates' gradients of a chunk with channel decays (channel_group_sm90.h): one warpgroup
// each for dq and dk.
#pragma once

#include "kernels/attn/linear/backward/channel_group_memory_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ChannelGroupStates {
  using Memory = ChannelGroupMemory<T>;
  using Record = typename Memory::Record;
  static constexpr int kTiles8 = kBlock / 8;
  using Wide = float[kTiles8][4];  ///< a tile of 128 channels
  using Pipe = StagesOf<Memory::kStages>;

  SEQPAR_DEVICE static void queries(const ChannelTask& task) {
    const GroupPosition place;
    Pipe pipe;
    int shared = 0;
    eachChannelChunk(task, [&](const GroupItem& item) {
      awaitPhase(opaqueMemory<Memory>().shared, shared);
      shared ^= 1;
      Wide x;
      backward::clear(x);
      for (int part = 0; part < task.panels(); ++part, pipe.next()) {
        Memory& memory = opaqueMemory<Memory>();
        auto& stage = memory.stages[pipe.stage];
        awaitPhase(memory.full[pipe.stage], pipe.parity);
        startPart(x, stage.dOut, stage.before);
        warpgroup::wait<0>();
        warpgroup::fenceOperand(x);
        arriveWarp(memory.empty[pipe.stage], place);
      }
      Memory& memory = opaqueMemory<Memory>();
      auto& rests = awaitRests(memory, pipe);
      if (memory.isStrong()) {
        ptx::barrierSync<kOfTotal, 4 * warpgroup::kThreads>();
        ptx::barrierArrive<kOfQueries, 2 * warpgroup::kThreads>();
        arriveWarp(memory.sharedEmpty, place);
        ptx::barrierSync<kOfKeys, 2 * warpgroup::kThreads>();
        storeOfState<0>(x, task, item, rests.queryRests(), place.opaque());
        arriveWarp(memory.empty[pipe.stage], place);
        pipe.next();
        return;
      }
      const T* const keys = memory.k + Memory::keysAt(item);
      addScores<Terms::AlongRows>(x, memory, keys, rests.keyRests());
      storeTerms(x, memory.q, rests.queryRests(), rests.terms(), place.opaque());
      ptx::barrierArrive<kOfQueries, 2 * warpgroup::kThreads>();
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
      ptx::barrierSync<kOfKeys, 2 * warpgroup::kThreads>();
      scaleAndWrite<false>(x, task, task.dq, item, rests.queryRests(), place.opaque());
      arriveWarp(opaqueMemory<Memory>().empty[pipe.stage], place);
      pipe.next();
    });
  }
  SEQPAR_DEVICE static void keys(const ChannelTask& task) {
    const GroupPosition place;
    Pipe pipe;
    int shared = 0;
    eachChannelChunk(task, [&](const GroupItem& item) {
      awaitPhase(opaqueMemory<Memory>().shared, shared);
      shared ^= 1;
      Wide x;
      backward::clear(x);
      float sum = 0;  // of S' E', of a channel
      for (int part = 0; part < task.panels(); ++part, pipe.next()) {
        Memory& memory = opaqueMemory<Memory>();
        auto& stage = memory.stages[pipe.stage];
        awaitPhase(memory.full[pipe.stage], pipe.parity);
        startPart(x, stage.v, stage.after);
        sum += product(stage.before, stage.after, place.opaque());
        warpgroup::wait<0>();
        warpgroup::fenceOperand(x);
        arriveWarp(memory.empty[pipe.stage], place);
      }
      Memory& memory = opaqueMemory<Memory>();
      auto& rests = awaitRests(memory, pipe);
      if (memory.isStrong()) {
        const int channel = place.warp * 32 + place.lane;
        ChannelGroupLoads<T>::recordOf(task, item).carry[item.block * kBlock + channel] =
            times(-memory.decays[channel], sum);
        ptx::barrierSync<kOfTotal, 4 * warpgroup::kThreads>();
        ptx::barrierArrive<kOfKeys, 2 * warpgroup::kThreads>();
        ptx::barrierSync<kOfQueries, 2 * warpgroup::kThreads>();
        ptx::barrierArrive<kOfGates, 3 * warpgroup::kThreads>();
        arriveWarp(memory.sharedEmpty, place);
        storeOfState<1>(x, task, item, rests.keyRests(), place.opaque());
        arriveWarp(memory.empty[pipe.stage], place);
        pipe.next();
        return;
      }
      const T* const keys = memory.k + Memory::keysAt(item);
      addColumns(memory.carry[place.warp], x, keys, rests.keyRests(), place.opaque());
      addScores<Terms::Rows>(x, memory, memory.q, rests.queryRests());
      ptx::barrierArrive<kOfKeys, 2 * warpgroup::kThreads>();
      ptx::barrierSync<kOfQueries, 2 * warpgroup::kThreads>();
      subtractTerms(x, keys, rests.keyRests(), rests.terms(), place.opaque());
      memory.carry[4][place.warp * 32 + place.lane] = sum;
      ptx::barrierArrive<kOfGates, 3 * warpgroup::kThreads>();
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
      scaleAndWrite<true>(x, task, task.dkOut, item, rests.keyRests(), place.opaque());
      arriveWarp(opaqueMemory<Memory>().empty[pipe.stage], place);
      pipe.next();
    });
  }

 private:
  /// Starts x += tile image^T.
  SEQPAR_DEVICE static void startPart(Wide& x, const T* tile, const T* image) {
    warpgroup::fenceOperand(x);
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, 4>(x, Operand{tile}, kChunk, Operand{image}, kBlock,
                                                                     true);
    warpgroup::commit();
  }
  SEQPAR_DEVICE static auto& awaitRests(Memory& memory, const Pipe& pipe) {
    awaitPhase(memory.full[pipe.stage], pipe.parity);
    return memory.stages[pipe.stage];
  }
  /// x += dA (`tile` + `rest`), or with the transpose of dA, without the product of both remainders.
  template <Terms kTerms>
  SEQPAR_DEVICE static void addScores(Wide& x, Memory& memory, const T* tile, const T* rest) {
    ptx::barrierSync<kOfTotal, 4 * warpgroup::kThreads>();
    warpgroup::fenceOperand(x);
    warpgroup::arrive();
    const auto add = [&](const T* matrix, const T* of) {
      warpgroup::multiplyAll<T, kTerms, Terms::Rows, 4>(x, Operand{matrix}, kChunk, Operand{of, kTilePanelBytes},
                                                        kChunk, true);
    };
    add(memory.out, rest);
    add(memory.matrices[0], tile);
    add(memory.out, tile);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(x);
  }
  /// The sum of a row of S' E': thread i has channel i.
  SEQPAR_DEVICE static float product(const T* before, const T* after, const GroupPosition& me) {
    const int row = me.warp * 32 + me.lane;
    float sums[2] = {0, 0};
    SEQPAR_UNROLL
    for (int unit = 0; unit < kPanel / 8; ++unit) {
      const int at = row * kPanel + (unit ^ row % 8) * 8;
      uint32_t a[4], b[4];
      ptx::load(a, before + at);
      ptx::load(b, after + at);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        sums[0] += ptx::lowOf<T>(a[i]) * ptx::lowOf<T>(b[i]);
        sums[1] += ptx::highOf<T>(a[i]) * ptx::highOf<T>(b[i]);
      }
    }
    return sums[0] + sums[1];
  }
  /// The elements of this thread in tiles n and n + 1: with 8 i + 4 e columns e of row i.
  SEQPAR_DEVICE static void loadBoth(float (&to)[4][2], const T* tile, const T* rest, int n, const GroupPosition& me) {
    uint32_t words[4], rests[4];
    ptx::ldmatrixX4(words, me.at(tile + n / 8 * kTilePanel, n % 8));
    ptx::ldmatrixX4(rests, me.at(rest + n / 8 * kTilePanel, n % 8));
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[i][0] = ptx::lowOf<T>(words[i]) + ptx::lowOf<T>(rests[i]);
      to[i][1] = ptx::highOf<T>(words[i]) + ptx::highOf<T>(rests[i]);
    }
  }
  /// Sums of x times the elements over this warp's tokens, for each channel.
  SEQPAR_DEVICE static void addColumns(float* to, const Wide& x, const T* tile, const T* rest,
                                       const GroupPosition& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      float elements[4][2];
      loadBoth(elements, tile, rest, n, me);
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float(&of)[4] = x[n + i];
        float low = elements[i * 2][0] * of[0] + elements[i * 2 + 1][0] * of[2],
              high = elements[i * 2][1] * of[1] + elements[i * 2 + 1][1] * of[3];
        SEQPAR_UNROLL
        for (int mask = 4; mask < 32; mask *= 2) {
          low += ptx::shflXor(low, mask);
          high += ptx::shflXor(high, mask);
        }
        if (me.g == 0) ptx::storePair(to + (n + i) * 8 + me.c * 2, low, high);
      }
    }
  }
  /// Stores the terms q' dq' of the gates' gradients.
  SEQPAR_DEVICE static void storeTerms(const Wide& x, const T* tile, const T* rest, float* terms,
                                       const GroupPosition& me) {
    eachTerm(x, tile, rest, terms, me, [](float* at, float low, float high) { ptx::storePair(at, low, high); });
  }
  /// Subtracts k' dk' from the terms.
  SEQPAR_DEVICE static void subtractTerms(const Wide& x, const T* tile, const T* rest, float* terms,
                                          const GroupPosition& me) {
    eachTerm(x, tile, rest, terms, me, [](float* at, float low, float high) {
      float first, second;
      ptx::loadPair(at, first, second);
      ptx::storePair(at, first - low, second - high);
    });
  }
  /// Calls act(address of two terms, x times the elements).
  template <class Act>
  SEQPAR_DEVICE static void eachTerm(const Wide& x, const T* tile, const T* rest, float* terms, const GroupPosition& me,
                                     const Act& act) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      float elements[4][2];
      loadBoth(elements, tile, rest, n, me);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* of = x[n + i / 2] + i % 2 * 2;
        float* const at = terms + Memory::Stage::termAt(me.row + i % 2 * 8, (n + i / 2) * 8 + me.c * 2);
        act(at, elements[i][0] * of[0], elements[i][1] * of[1]);
      }
    }
  }
  /// Stores the products with a state to the record, for channel_within_sm90.h.
  template <int kResult>
  SEQPAR_DEVICE static void storeOfState(const Wide& x, const ChannelTask& task, const GroupItem& item, T* staged,
                                         const GroupPosition& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      uint32_t words[4];
      packTiles<T>(words, x, n);
      ptx::stmatrixX4(me.at(staged + n / 8 * kTilePanel, n % 8), words);
    }
    ptx::syncwarp();
    T* const to = ChannelGroupLoads<T>::recordOf(task, item).rests[item.block][kResult];
    SEQPAR_ROLLED
    for (int i = 0; i < 8; ++i) {
      const int at = i / 4 * kTilePanel + (me.warp * 16 + i % 4 * 4) * kPanel + me.lane * 8;
      uint32_t words[4];
      ptx::load(words, staged + at);
      ptx::storeGlobal(to + at, words);
    }
    warpgroup::fenceProxyAsync();
  }
  /// Writes dq = scale 2^L dq', or dk = 2^-L dk'. `staged`: rows of a tile that each warp may overwrite.
  template <bool kKeys>
  SEQPAR_DEVICE static void scaleAndWrite(Wide& x, const ChannelTask& task, const Target& to, const GroupItem& item,
                                          T* staged, const GroupPosition& me) {
    if (to.data == nullptr) return warpgroup::fenceProxyAsync();
    const float scale = kKeys ? 1.f : task.scale;
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      uint32_t logs[4], words[4];
      ptx::load(logs, opaqueMemory<Memory>().logs[n / 2][me.warp * 32 + me.lane]);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* of = x[n + i / 2] + i % 2 * 2;
        const float low = Record::lowOf(logs[i]), high = Record::highOf(logs[i]);
        words[i] = ptx::pack<T>(scale * of[0] * ptx::ex2Approx(kKeys ? -low : low),
                                scale * of[1] * ptx::ex2Approx(kKeys ? -high : high));
      }
      ptx::stmatrixX4(me.at(staged + n / 8 * kTilePanel, n % 8), words);
    }
    ptx::syncwarp();
    const int firstChannel = item.block * kBlock, channels = task.dk - firstChannel;
    uint16_t* data = static_cast<uint16_t*>(to.data) + item.sequence * to.batch + item.token * to.token +
                     item.head * to.head + firstChannel;
    SEQPAR_ROLLED
    for (int i = 0; i < 8; ++i) {
      const int row = me.warp * 16 + i * 2 + me.lane / 16, unit = me.lane % 16;
      uint32_t words[4];
      ptx::load(words, unitOf<kChunk>(staged, row, unit));
      if (row < item.rows && unit * 8 < channels) putUnit(to, data + row * to.token + unit * 8, words);
    }
    warpgroup::fenceProxyAsync();
  }
};

}  // namespace seqpar::attn::backward::sm90
