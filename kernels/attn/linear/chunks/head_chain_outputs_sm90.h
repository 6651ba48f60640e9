// A warpgroup that computes the outputs of every second chunk of a head in one chain (head_chain_sm90.h,
// wide_chain_sm90.h): O = P V + decays * (Q S), with P the scores times their decays.
#pragma once

#include "kernels/attn/linear/chunks/head_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// kReaderFences: as in HeadChainState.
template <class T, class Memory, bool kReaderFences>
class HeadChainOutputs {
 public:
  SEQPAR_DEVICE HeadChainOutputs(const HeadChainTask& task, Memory& memory) : task_(task), memory_(memory) {}

  /// `first`: the running number of the item's first chunk.
  SEQPAR_DEVICE void run(const ChainItem& item, int first) const {
    for (int number = first + ((first ^ me_.group) & 1); number < first + item.chunks; number += 2) {
      Columns out;
      multiply(out, number);
      write(out, item, number, (item.chunk + number - first) * kChunk);
    }
  }
  SEQPAR_DEVICE void finish() const {
    if (me_.inGroup == 0) ptx::cpAsyncBulkWaitGroup();
  }

 private:
  static constexpr int kPanels = Memory::kPanels, kTiles8 = kChunk / 8, kKeySteps = kChunk / 16,
                       kChannelSteps = Memory::kKeyPanels * kPanel / 16;
  static constexpr int kColumns = kChainColumns<kPanels>, kImagePanelBytes = kColumns * warpgroup::kRowBytes;
  static constexpr bool kWide = Memory::kKeyPanels > 2;  ///< wide_chain_sm90.h
  using Factors = typename Memory::Factors;
  using Scores = float[kTiles8][4];
  using Columns = float[kColumns / 8][4];  ///< of outputs

  SEQPAR_DEVICE void multiply(Columns& out, int number) const {
    memory_.awaitFull(number);
    const Factors& factors = memory_.factorsOf(number);
    const float rows[2] = {factors.rowOf(me_.row, task_.scale), factors.rowOf(me_.row + 8, task_.scale)};
    if constexpr (kWide) {
      uint32_t words[kKeySteps][4];
      multiplyTogether(out, words, number);
      scaleAndAdd(out, words, rows, number);
      free(memory_.empty(number));
    } else {
      multiplyApart(out, rows, factors.little != 0, number);
    }
  }
  SEQPAR_DEVICE void multiplyApart(Columns& out, const float (&rows)[2], bool little, int number) const {
    uint32_t queries[kChannelSteps][4], words[kKeySteps][4];
    loadQueries(queries, memory_.of(number).queries);
    makeScores(words, queries, number);
    if constexpr (kPanels == 1) {
      Columns within;
      multiplyScores(within, words, number, false);
      awaitImage(number);
      multiplyQueries(out, queries, number);
      warpgroup::wait<0>();
      warpgroup::fenceOperand(within);
      warpgroup::fenceOperand(out);
      freeChunk(number);
      if (little) {  // no row is 0
        each([&](int n, int e) { out[n][e] = rows[e / 2] * out[n][e] + within[n][e]; });
      } else {
        each([&](int n, int e) { out[n][e] = backward::times(rows[e / 2], out[n][e]) + within[n][e]; });
      }
    } else {  // with fewer registers
      awaitImage(number);
      multiplyQueries(out, queries, number);
      warpgroup::wait<0>();
      warpgroup::fenceOperand(out);
      scaleAndAdd(out, words, rows, number);
      freeChunk(number);
    }
  }
  /// out = rows out + scores V.
  SEQPAR_DEVICE void scaleAndAdd(Columns& out, const uint32_t (&words)[kKeySteps][4], const float (&rows)[2],
                                 int number) const {
    each([&](int n, int e) { out[n][e] = backward::times(rows[e / 2], out[n][e]); });
    warpgroup::fenceOperand(out);
    multiplyScores(out, words, number, true);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
  }
  /// Scores, and out = Q S. Registers do not suffice for all queries, so both products use a panel of them at a time.
  SEQPAR_DEVICE void multiplyTogether(Columns& out, uint32_t (&words)[kKeySteps][4], int number) const {
    constexpr int kSteps = kPanel / 16, kQueryPanels = kChannelSteps / kSteps;
    const T* tile = memory_.queries(number);
    awaitImage(number);
    const ptx::MatrixRows own = me_.matrixRows();
    Scores scores;
    uint32_t queries[2][kSteps][4];
    SEQPAR_UNROLL
    for (int panel = 0; panel < kQueryPanels; ++panel) {
      if (panel >= 2) warpgroup::wait<1>();
      SEQPAR_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        ptx::ldmatrixX4(queries[panel % 2][step],
                        backward::sm90::unitOf<kChunk>(tile, own.row(me_.warpIndex * 16),
                                                       2 * (panel * kSteps + step) + own.half()));
      }
      warpgroup::arrive();
      SEQPAR_UNROLL
      for (int i = 0; i < kSteps; ++i) {
        const int step = panel * kSteps + i;
        warpgroup::multiplyStep<T, Terms::AlongRows>(
            scores, queries[panel % 2][i], Operand{memory_.of(number).keys, kTilePanelBytes}, kChunk, step, step > 0);
        multiplyQuery(out, queries[panel % 2][i], number, step);
      }
      warpgroup::commit();
    }
    free(memory_.queriesEmpty(number));
    warpgroup::wait<0>();
    warpgroup::fenceOperand(scores);
    warpgroup::fenceOperand(out);
    free(memory_.read(number));
    decayScores(words, scores, memory_.factorsOf(number));
  }
  /// Scores do not wait for the state.
  SEQPAR_DEVICE void makeScores(uint32_t (&words)[kKeySteps][4], const uint32_t (&queries)[kChannelSteps][4],
                                int number) const {
    Scores scores;
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int step = 0; step < kChannelSteps; ++step) {
      warpgroup::multiplyStep<T, Terms::AlongRows>(
          scores, queries[step], Operand{memory_.of(number).keys, kTilePanelBytes}, kChunk, step, step > 0);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(scores);
    decayScores(words, scores, memory_.factorsOf(number));
  }
  /// Starts out (+)= scores V.
  SEQPAR_DEVICE void multiplyScores(Columns& out, const uint32_t (&words)[kKeySteps][4], int number, bool add) const {
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int step = 0; step < kKeySteps; ++step) {
      multiplyColumns<T, Terms::Rows>(out, words[step], memory_.of(number).values, kTilePanelBytes, 0, kChunk, step,
                                      add || step > 0);
    }
    warpgroup::commit();
  }
  /// Starts out = Q S.
  SEQPAR_DEVICE void multiplyQueries(Columns& out, const uint32_t (&queries)[kChannelSteps][4], int number) const {
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int step = 0; step < kChannelSteps; ++step) multiplyQuery(out, queries[step], number, step);
    warpgroup::commit();
  }
  /// The terms of 16 channels.
  SEQPAR_DEVICE void multiplyQuery(Columns& out, const uint32_t (&query)[4], int number, int step) const {
    const T* image = memory_.image(number);
    if constexpr (Memory::kChannelRows) {
      warpgroup::multiplyStep<T, Terms::Rows>(out, query, Operand{image, kTilePanelBytes}, kChunk, step, step > 0);
    } else {
      multiplyColumns<T, Terms::AlongRows>(out, query, image, kPanel * warpgroup::kRowBytes, kImagePanelBytes, kColumns,
                                           step, step > 0);
    }
  }
  SEQPAR_DEVICE void freeChunk(int number) const {
    ptx::syncwarp();
    if (me_.lane != 0) return;
    ptx::mbarrierArrive(memory_.read(number));
    ptx::mbarrierArrive(memory_.empty(number));
  }
  SEQPAR_DEVICE void awaitImage(int number) const {
    memory_.awaitStored(number);
    if constexpr (kReaderFences) warpgroup::fenceProxyAsync();
  }
  SEQPAR_DEVICE void free(uint32_t barrier) const {
    ptx::syncwarp();
    if (me_.lane == 0) ptx::mbarrierArrive(barrier);
  }
  /// Calls act(tile, element) for the accumulators of the columns.
  template <class Act>
  SEQPAR_DEVICE static void each(const Act& act) {
    SEQPAR_UNROLL
    for (int n = 0; n < kColumns / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) act(n, e);
    }
  }
  /// This warp's queries, as A of products.
  SEQPAR_DEVICE void loadQueries(uint32_t (&queries)[kChannelSteps][4], const T* tile) const {
    const ptx::MatrixRows own = me_.matrixRows();
    SEQPAR_UNROLL
    for (int step = 0; step < kChannelSteps; ++step) {
      ptx::ldmatrixX4(queries[step],
                      backward::sm90::unitOf<kChunk>(tile, own.row(me_.warpIndex * 16), 2 * step + own.half()));
    }
  }
  /// Scores times their decays and input gates, rounded; 0 for later keys, assigned: they may have overflowed.
  SEQPAR_DEVICE void decayScores(uint32_t (&words)[kKeySteps][4], Scores& scores, const Factors& factors) const {
    if (factors.separable != 0) return separate(words, scores, factors);
    SEQPAR_UNROLL
    for (int step = 0; step < kKeySteps; ++step) clearLater(scores, step);
    packExactly<T, kTiles8>(words, scores, factors.queries, factors.keys, task_.scale, me_.row, me_.c);
  }
  SEQPAR_DEVICE void separate(uint32_t (&words)[kKeySteps][4], Scores& scores, const Factors& factors) const {
    const float rows[2] = {factors.queries[me_.row], factors.queries[me_.row + 8]};
    SEQPAR_UNROLL
    for (int step = 0; step < kKeySteps; ++step) {
      SEQPAR_UNROLL
      for (int n = 2 * step; n < 2 * step + 2; ++n) {
        float keys[2];
        ptx::loadPair(factors.keys + n * 8 + me_.c * 2, keys[0], keys[1]);
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) scores[n][e] *= rows[e / 2] * keys[e % 2];
      }
      clearLater(scores, step);
      backward::sm90::packTiles<T>(words[step], scores, 2 * step);
    }
  }
  /// Of 16 keys.
  SEQPAR_DEVICE void clearLater(Scores& scores, int step) const {
    if (step < me_.warpIndex) return;  // earlier than all queries of the warp
    SEQPAR_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int key = step * 16 + i / 4 * 8 + me_.c * 2 + i % 2, query = me_.row + i % 4 / 2 * 8;
      if (key > query) scores[step * 2 + i / 4][i % 4] = 0;
    }
  }
  /// kWide: another warp stores them to device memory.
  SEQPAR_DEVICE void write(const Columns& out, const ChainItem& item, int number, int token) const {
    T* tile = memory_.outputs(number);
    if constexpr (kWide) {
      memory_.awaitOutputsRead(number);
    } else {
      if (me_.inGroup == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
      warpgroup::sync(me_.group);
    }
    const ptx::MatrixRows own = me_.matrixRows();
    SEQPAR_UNROLL
    for (int n = 0; n < kColumns / 8; n += 2) {
      uint32_t words[4];
      backward::sm90::packTiles<T>(words, out, n);
      ptx::stmatrixX4(backward::sm90::unitOf<kChunk>(tile, own.row(me_.warpIndex * 16), n + own.half()), words);
    }
    warpgroup::fenceProxyAsync();
    if constexpr (kWide) return ptx::mbarrierArrive(memory_.outputsFull());
    warpgroup::sync(me_.group);
    if (me_.inGroup != 0) return;
    SEQPAR_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tmaStore(task_.outputs, ptx::sharedAddress(tile + panel * kTilePanel), item.column + panel * kPanel,
                    item.head, token, item.sequence);
    }
    ptx::cpAsyncBulkCommitGroup();
  }

  const HeadChainTask& task_;
  Memory& memory_;
  Half me_;
};

}  // namespace seqpar::attn::forward_sm90
