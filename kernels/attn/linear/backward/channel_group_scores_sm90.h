// Gradients of scores of a chunk with channel decays, and dv (channel_group_sm90.h). Two warpgroups: each has the
// columns of 32 keys of a matrix of 64 x 64 tokens, and 32 columns of dv.
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
      awaitPhase(opaqueMemory<Memory>().full[pipe.stage], pipe.parity);  // of remainders, which are not read
      arriveWarp(opaqueMemory<Memory>().empty[pipe.stage], place);
      pipe.next();
      arriveWarp(opaqueMemory<Memory>().sharedEmpty, place);
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
};

}  // namespace seqpar::attn::backward::sm90
