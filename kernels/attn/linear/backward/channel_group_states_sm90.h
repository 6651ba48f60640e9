// dq, dk and the gates' gradients of a chunk with channel decays (channel_group_sm90.h): one warpgroup each for dq and
// dk; that of dk also writes the gates' gradients.
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
      T* const keys = memory.k + Memory::keysAt(item);
      addScores<Terms::AlongRows>(x, memory, keys, rests.keyRests());
      ptx::barrierSync<kOfKeys, 2 * warpgroup::kThreads>();
      eachTerm(x, memory.q, rests.queryRests(), rests.terms(), place.opaque(),
               [](float& term, float product) { term += product; });
      ptx::barrierArrive<kOfQueries, 2 * warpgroup::kThreads>();
      warpgroup::fenceProxyAsync();
      arriveWarp(opaqueMemory<Memory>().empty[pipe.stage], place);
      pipe.next();
      scaleAndWrite<false>(x, task, task.dq, item, keys, place.opaque());
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
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
      const T* const keys = memory.k + Memory::keysAt(item);
      addColumns(memory.carry[place.warp], x, keys, rests.keyRests(), place.opaque());
      addScores<Terms::Rows>(x, memory, memory.q, rests.queryRests());
      eachTerm(x, keys, rests.keyRests(), rests.terms(), place.opaque(),
               [](float& term, float product) { term = -product; });
      ptx::barrierArrive<kOfKeys, 2 * warpgroup::kThreads>();
      ptx::barrierSync<kOfQueries, 2 * warpgroup::kThreads>();
      writeGates(sum, task, item, memory.carry, rests.terms(), place.opaque());
      arriveWarp(opaqueMemory<Memory>().empty[pipe.stage], place);
      pipe.next();
      scaleAndWrite<true>(x, task, task.dkOut, item, opaqueMemory<Memory>().q, place.opaque());
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
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
  /// Calls add(term of the gates' gradients, x times the element).
  template <class Add>
  SEQPAR_DEVICE static void eachTerm(const Wide& x, const T* tile, const T* rest, float* terms, const GroupPosition& me,
                                     const Add& add) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      float elements[4][2];
      loadBoth(elements, tile, rest, n, me);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* of = x[n + i / 2] + i % 2 * 2;
        float* const at = terms + Memory::Stage::termAt(me.row + i % 2 * 8, (n + i / 2) * 8 + me.c * 2);
        float low, high;
        ptx::loadPair(at, low, high);
        add(low, elements[i][0] * of[0]);
        add(high, elements[i][1] * of[1]);
        ptx::storePair(at, low, high);
      }
    }
  }
  /// Writes dq = scale 2^L dq', or dk = 2^-L dk'. `staged`: memory that this warpgroup may overwrite.
  template <bool kKeys>
  SEQPAR_DEVICE static void scaleAndWrite(Wide& x, const ChannelTask& task, const Target& to, const GroupItem& item,
                                          T* staged, const GroupPosition& me) {
    if (to.data == nullptr) return;
    const Record& record = task.recordOf<Record>(item.sequence, item.head, item.number);
    const float scale = kKeys ? 1.f : task.scale;
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; n += 2) {
      uint32_t logs[4], words[4];
      ptx::load(logs, record.logs[item.block][n / 2][me.warp * 32 + me.lane]);
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
  /// Thread i writes channel i: sums of the terms from the last token, and of what later tokens contribute.
  SEQPAR_DEVICE static void writeGates(float sum, const ChannelTask& task, const GroupItem& item,
                                       const float (&carries)[4][kBlock], const float* all, const GroupPosition& me) {
    const Target& to = task.dGates;
    const int channel = me.warp * 32 + me.lane, ofHead = item.block * kBlock + channel;
    if (to.data == nullptr) return;
    SEQPAR_UNROLL
    for (const auto& carry : carries) sum += carry[channel];
    int64_t at = item.sequence * to.batch + (item.token + kChunk - 1) * to.token + item.head * to.head + ofHead;
    SEQPAR_ROLLED
    for (int upper = 3; upper >= 0; --upper) {
      float terms[16];
      SEQPAR_UNROLL
      for (int i = 0; i < 16; ++i) {
        terms[i] = all[Memory::Stage::termAt(upper * 16 + i, channel)];
      }
      SEQPAR_UNROLL
      for (int i = 15; i >= 0; --i, at -= to.token) {
        sum += terms[i];
        if (upper * 16 + i >= item.rows || ofHead >= task.dk) continue;
        if (to.type == seqparFloat32) {
          static_cast<float*>(to.data)[at] = sum;
        } else {
          static_cast<uint16_t*>(to.data)[at] = static_cast<uint16_t>(ptx::pack<Bf16>(sum, 0));
        }
      }
    }
    warpgroup::fenceProxyAsync();
  }
};

}  // namespace seqpar::attn::backward::sm90
