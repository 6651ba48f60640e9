// A consumer warpgroup of the sm_90 kernel for outputs of all chunks (chunk_outputs_sm90.h).
#pragma once

#include "kernels/attn/linear/chunks/chunk_output_units_sm90.h"
#include "kernels/attn/linear/chunks/score_decays_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// 64 of a chunk's queries.
template <class T>
struct ChunkOutputsConsumer {
  using Memory = ChunkOutputsMemory<T>;
  const ChunkStatesTask& task;
  Memory& memory;
  Half me;
  static constexpr int kSteps = kOutputTokens / 16;  ///< of keys
  using Scores = float[2 * kSteps][4];
  using Words = uint32_t[kSteps][4];
  using Outputs = float[warpgroup::kPanel / 8][4];

  SEQPAR_DEVICE void run() const {
    Scores scores;
    int last = -1;
    eachUnit(
        task,
        [&](const OutputUnit&, int queries, int stage) {
          if (queries > 0) freeQueries();
          last = queries;
          multiplyScores(scores, queries, stage);
        },
        [&](const OutputUnit& unit, int, int stage) { output(scores, unit, stage); });
    if (last >= 0) freeQueries();
    if (me.inGroup == 0) ptx::cpAsyncBulkWaitGroup();
  }

 private:
  SEQPAR_DEVICE const T* queriesOf(int block) const { return memory.queries[block] + me.group * (kOutputPanel / 2); }
  SEQPAR_DEVICE void freeQueries() const {
    ptx::syncwarp();
    if (me.lane == 0) ptx::mbarrierArrive(memory.queriesEmpty());
  }
  SEQPAR_DEVICE void freeStage(int number) const {
    ptx::syncwarp();
    if (me.lane == 0) ptx::mbarrierArrive(memory.empty(number));
  }
  /// The scores of this warpgroup's queries, 0 for later keys.
  SEQPAR_DEVICE void multiplyScores(Scores& scores, int queries, int stage) const {
    ptx::mbarrierWaitParity(memory.queriesFull(), queries & 1);
    for (int block = 0; block < kKeyBlocks; ++block) {
      memory.awaitFull(stage + block);
      warpgroup::arrive();
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kBlock / 16>(
          scores, Operand{queriesOf(block), 2 * kOutputPanel}, kOutputTokens,
          Operand{memory.stage(stage + block), 2 * kOutputPanel}, kOutputTokens, block > 0);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(scores);
      freeStage(stage + block);
    }
    const int row = me.group * kChunkTokens + me.row;
    SEQPAR_UNROLL
    for (int n = 0; n < 2 * kSteps; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (n * 8 + me.c * 2 + e % 2 > row + e / 2 * 8) scores[n][e] = 0;
      }
    }
  }
  SEQPAR_DEVICE void output(const Scores& scores, const OutputUnit& unit, int stage) const {
    const OutputFactors& factors = memory.factors[stage % Memory::kStages];
    const T* values = memory.stage(stage);
    Outputs out;
    memory.awaitFull(stage);
    warpgroup::arrive();
    for (int block = 0; block < kKeyBlocks; ++block) {
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, kBlock / 16>(
          out, Operand{queriesOf(block), 2 * kOutputPanel}, kOutputTokens, Operand{values + (1 + block) * kOutputPanel},
          kBlock, block > 0);
    }
    warpgroup::commit();
    const float* rows = factors.rows + me.group * kChunkTokens + me.row;
    Words words;
    decayScores(words, scores, factors, rows[0], rows[8]);
    const float before = me.group == 0 ? 1.f : backward::decayOf(factors.totals[0]);
    const float by[2] = {before * rows[0], before * rows[8]};
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
    SEQPAR_UNROLL
    for (auto& tile : out) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) tile[e] = backward::times(by[e / 2], tile[e]);
    }
    warpgroup::fenceOperand(out);
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps / 2; ++step) {
      warpgroup::multiplyStep<T, Terms::Rows>(out, words[step], Operand{values}, kOutputTokens, step, true);
    }
    if (me.group == 1) {
      SEQPAR_UNROLL
      for (int step = kSteps / 2; step < kSteps; ++step) {
        warpgroup::multiplyStep<T, Terms::Rows>(out, words[step], Operand{values}, kOutputTokens, step, true);
      }
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
    freeStage(stage);
    write(out, unit);
  }
  /// Scores times their decays and input gates, rounded: those of the first tile's queries in the first half.
  SEQPAR_DEVICE void decayScores(Words& words, const Scores& scores, const OutputFactors& factors, float row,
                                 float row8) const {
    const bool little = factors.totals[me.group] >= backward::sm90::kLeastOfFactors;
    if (me.group == 0) {
      if (little) return multiply<0>(words, scores, factors.inverses, row, row8);
      return multiplyExactly<0>(words, scores, factors);
    }
    multiply<0>(words, scores, factors.ends, row, row8);
    if (little) return multiply<kSteps / 2>(words, scores, factors.inverses + kChunkTokens, row, row8);
    multiplyExactly<kSteps / 2>(words, scores, factors);
  }
  /// Of half of the keys, from step kFirst on.
  template <int kFirst>
  SEQPAR_DEVICE void multiply(Words& words, const Scores& scores, const float* keys, float row, float row8) const {
    packScaled<T, kSteps>(words + kFirst, scores + 2 * kFirst, keys, row, row8, me.c);
  }
  /// The same with strong decays.
  template <int kFirst>
  SEQPAR_DEVICE void multiplyExactly(Words& words, const Scores& scores, const OutputFactors& factors) const {
    packExactly<T, kSteps>(words + kFirst, scores + 2 * kFirst, factors.sums + kFirst * 16,
                           factors.inputs + kFirst * 16, task.scale, me.row, me.c);
  }
  SEQPAR_DEVICE void write(const Outputs& out, const OutputUnit& unit) const {
    T* tile = memory.out[me.group];
    if (me.inGroup == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
    warpgroup::sync(me.group);
    const ptx::MatrixRows own = me.matrixRows();
    SEQPAR_UNROLL
    for (int n = 0; n < warpgroup::kPanel / 8; n += 2) {
      uint32_t words[4];
      backward::sm90::packTiles<T>(words, out, n);
      ptx::stmatrixX4(backward::sm90::unitOf<kChunkTokens>(tile, own.row(me.warpIndex * 16), n + own.half()), words);
    }
    warpgroup::fenceProxyAsync();
    warpgroup::sync(me.group);
    const int64_t token = unit.token() + me.group * kChunkTokens;
    if (me.inGroup != 0 || token >= task.tokens) return;
    ptx::tmaStore(task.outputs, ptx::sharedAddress(tile), unit.panel * warpgroup::kPanel, unit.head,
                  static_cast<int>(token), unit.sequence);
    ptx::cpAsyncBulkCommitGroup();
  }
};

}  // namespace seqpar::attn::forward_sm90
