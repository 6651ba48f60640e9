// Gradients of scores of a chunk with channel decays, dv and the gates' gradients (channel_group_sm90.h). Two
// warpgroups: each has the columns of 32 keys of a matrix of 64 x 64 tokens, 32 columns of dv, and the gates of 32
// tokens.
#pragma once

#include "kernels/attn/linear/backward/channel_group_memory_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ChannelGroupScores {
  using Memory = ChannelGroupMemory<T>;
  using Columns = float[4][4];  ///< of 32 columns
  using Pipe = StagesOf<Memory::kStages>;

  SEQPAR_DEVICE static void run(const ChannelTask& task) {
    const GroupPosition place;
    Pipe pipe;
    int shared = 0;
    eachChannelChunk(task, [&](const GroupItem& item) {
      awaitPhase(opaqueMemory<Memory>().shared, shared);
      shared ^= 1;
      const bool strong = opaqueMemory<Memory>().isStrong();
      Columns total;
      backward::clear(total);
      for (int part = 0; part < task.panels(); ++part) {
        const GroupPosition me = place.opaque();
        awaitPhase(opaqueMemory<Memory>().full[pipe.stage], pipe.parity);
        addPart(total, task, item, part, pipe, me);
        pipe.next();
      }
      clearAbove(total, place.opaque());
      ptx::barrierSync<kOfScores, 2 * warpgroup::kThreads>();  // A is not read any more
      storeTwice(opaqueMemory<Memory>().out, opaqueMemory<Memory>().matrices[0], total, place.opaque());
      warpgroup::fenceProxyAsync();
      ptx::barrierSync<kOfTotal, 4 * warpgroup::kThreads>();
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
      ptx::barrierSync<kOfGates, 3 * warpgroup::kThreads>();  // terms are stored, in the stage of remainders
      if (!strong) writeGates(task, item, opaqueMemory<Memory>(), pipe.stage, place.opaque());
      arriveWarp(opaqueMemory<Memory>().empty[pipe.stage], place);
      pipe.next();
    });
  }

 private:
  /// Adds dA of a part to `total`, and computes its dv if the item does.
  SEQPAR_DEVICE static void addPart(Columns& total, const ChannelTask& task, const GroupItem& item, int part,
                                    const Pipe& pipe, const GroupPosition& me) {
    Memory& memory = opaqueMemory<Memory>();
    auto& stage = memory.stages[pipe.stage];
    const int first = me.group * 32;
    warpgroup::fenceOperand(total);
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, 4>(total, Operand{stage.dOut}, kChunk,
                                                                     Operand{stage.v + first * kPanel}, kChunk, true);
    if (!Memory::hasValues(item, part)) {
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(total);
      return finish(memory, pipe, me);
    }
    Columns dv;
    SEQPAR_UNROLL
    for (int other = 0; other < 2; ++other) {
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, kBlock / 16>(
          dv, Operand{memory.k + Memory::keysAt(item, other != 0), kTilePanelBytes}, kChunk,
          Operand{stage.after + other * Memory::kImage + first}, kBlock, other != 0);
    }
    SEQPAR_UNROLL
    for (const auto& matrix : memory.matrices) {
      warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(dv, Operand{matrix}, kChunk, Operand{stage.dOut + first},
                                                             kChunk, true);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(total);
    warpgroup::fenceOperand(dv);
    finish(memory, pipe, me);
    writeValues(dv, task, item, part, memory, me);
  }
  SEQPAR_DEVICE static void finish(Memory& memory, const Pipe& pipe, const GroupPosition& me) {
    arriveWarp(memory.empty[pipe.stage], me);
  }
  /// Zeroes elements of keys after the query.
  SEQPAR_DEVICE static void clearAbove(Columns& x, const GroupPosition& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int key = me.group * 32 + n * 8 + me.c * 2 + e % 2, query = me.row + e / 2 * 8;
        if (key > query) x[n][e] = 0;
      }
    }
  }
  /// Stores x rounded to T, and the remainders.
  SEQPAR_DEVICE static void storeTwice(T* matrix, T* remainder, Columns& x, const GroupPosition& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; n += 2) {
      uint32_t words[4];
      packTiles<T>(words, x, n);
      ptx::stmatrixX4(me.at(matrix, me.group * 4 + n), words);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        float* pair = x[n + i / 2] + i % 2 * 2;
        words[i] = ptx::pack<T>(pair[0] - ptx::lowOf<T>(words[i]), pair[1] - ptx::highOf<T>(words[i]));
      }
      ptx::stmatrixX4(me.at(remainder, me.group * 4 + n), words);
    }
  }
  SEQPAR_DEVICE static void writeValues(const Columns& dv, const ChannelTask& task, const GroupItem& item, int part,
                                        Memory& memory, const GroupPosition& me) {
    const Target& to = task.dvOut;
    if (to.data == nullptr) return;
    SEQPAR_UNROLL
    for (int n = 0; n < 4; n += 2) {
      uint32_t words[4];
      packTiles<T>(words, dv, n);
      ptx::stmatrixX4(me.at(memory.out, me.group * 4 + n), words);
    }
    ptx::syncwarp();
    uint16_t* data = static_cast<uint16_t*>(to.data) + item.sequence * to.batch + item.token * to.token +
                     item.head * to.head + part * kPanel;
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = me.warp * 16 + i * 8 + me.lane / 4, unit = me.group * 4 + me.lane % 4;
      uint32_t words[4];
      ptx::load(words, memory.out + row * kPanel + (unit ^ row % 8) * 8);
      if (row < item.rows) putUnit(to, data + row * to.token + unit * 8, words);
    }
    ptx::syncwarp();
  }
  /// Thread i of a warpgroup writes channel i: sums of the terms from the last token, and of what later tokens
  /// contribute.
  SEQPAR_DEVICE static void writeGates(const ChannelTask& task, const GroupItem& item, const Memory& memory, int stage,
                                       const GroupPosition& me) {
    constexpr int kTokens = kChunk / 2, kAtOnce = 16;
    const Target& to = task.dGates;
    const int channel = me.warp * 32 + me.lane, ofHead = item.block * kBlock + channel;
    if (to.data == nullptr) return;
    const float* const all = memory.stages[stage].terms();
    float sum = memory.carry[4][channel];
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) sum += memory.carry[i][channel];
    const auto load = [&](float(&terms)[kAtOnce], int row) {
      SEQPAR_UNROLL
      for (int i = 0; i < kAtOnce; ++i) terms[i] = all[Memory::Stage::termAt(row + i, channel)];
    };
    for (int row = kChunk - kAtOnce; row >= (me.group + 1) * kTokens; row -= kAtOnce) {
      float terms[kAtOnce];
      load(terms, row);
      SEQPAR_UNROLL
      for (int i = kAtOnce - 1; i >= 0; --i) sum += terms[i];
    }
    int row = (me.group + 1) * kTokens - 1;
    int64_t at = item.sequence * to.batch + (item.token + row) * to.token + item.head * to.head + ofHead;
    SEQPAR_ROLLED
    for (int first = row + 1 - kAtOnce; first >= me.group * kTokens; first -= kAtOnce) {
      float terms[kAtOnce];
      load(terms, first);
      SEQPAR_UNROLL
      for (int i = kAtOnce - 1; i >= 0; --i, --row, at -= to.token) {
        sum += terms[i];
        if (row >= item.rows || ofHead >= task.dk) continue;
        if (to.type == seqparFloat32) {
          static_cast<float*>(to.data)[at] = sum;
        } else {
          static_cast<uint16_t*>(to.data)[at] = static_cast<uint16_t>(ptx::pack<Bf16>(sum, 0));
        }
      }
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
