// The first step for 16-bit tensors: the parts of a chunk's recurrence that depend on no state.
//
// Work      a CTA of 256 threads has one (chunk, head, batch entry)
// Roles     products by warps; blocks of 16 x 16 of the inverse by substitution and the first merges by two warps,
//           while the others store decayed rows. Merges of blocks: inverse_split.h, by four warps, with decays of
//           channels; otherwise by eight, as three TF32 products
// Tiles     chunks of 64 tokens x 128 channels
// Smem      PrepareMemory; tiles that have been used are replaced
// Barriers  __syncthreads() between steps; named, kMerge
// Overlap   cp.async loads values during the products of keys. Task::overlaps
#pragma once

#include "kernels/attn/linear/delta/half/channels.h"
#include "kernels/attn/linear/delta/half/inverse_split.h"
#include "kernels/attn/linear/delta/half/tokens.h"

namespace seqpar::attn::delta::half {

/// kChannel: decays of channels.
template <class T, bool kChannel>
class Prepare {
 public:
  SEQPAR_DEVICE static void run(const Task& task) {
    const RecordPlace place(task, task.heads);
    Prepare(task, place.head, place.number, place.batch).steps();
    endOverlap(task);
  }
  /// The record of a head and a chunk.
  SEQPAR_DEVICE static void runRecord(const Task& task, int head, int number, int64_t batch) {
    Prepare(task, head, number, batch).steps();
  }

 private:
  static constexpr int kParts = ptx::kIsBf16<T> ? 1 : 2;
  static constexpr int kMerge = 1;  ///< named barrier of the first four warps
  /// Whether operands of scores are fp16 where decays are mild: the rounding of bf16 is as large as that of the
  /// results. Two parts of bf16 need no other form.
  static constexpr bool kMayBeMild = kChannel && kParts == 1;

  SEQPAR_DEVICE Prepare(const Task& t, int head, int number, int64_t batch)
      : task_(t), columns_(paddedColumns(t)), warp_(ptx::uniform(threadAgain() / 32)), row_(warp_ % 4 * kBlock) {
    head_ = head;
    batch_ = batch;
    chunk_ = t.chunks[t.first + number];
    record_ = recordOf(t, batch_, head_, number);
    memory_.place(kChannel, kParts);
  }

  SEQPAR_DEVICE void steps() {
    const int keyHead = keyHeadOf(task_, head_), thread = threadAgain();
    startTensor<kKeys, kThreads>(keys(), {task_.k, batch_, chunk_, keyHead, 0, task_.dk}, thread);
    startTensor<kKeys, kThreads>(queries(), {task_.q, batch_, chunk_, keyHead, 0, task_.dk}, thread);
    ptx::cpAsyncCommitGroup();
    if constexpr (!kChannel) startValues(0);
    bool started = false;
    if constexpr (kChannel) {
      started = decays_.start(task_, batch_, chunk_, head_);
      prefetchTensor<kKeys>({task_.v, batch_, chunk_, head_, 0, task_.dv}, thread);
    }
    if (thread < kRows) {
      const TokenGates gates(task_, batch_, chunk_, head_, !kChannel);
      memory_.beta[thread] = gates.betaOf(task_, chunk_);
      if constexpr (!kChannel) memory_.tokens.decay[thread] = gates.decayOf(task_, chunk_);
    }
    ptx::cpAsyncWaitGroup<kChannel ? 0 : 1>();
    ptx::syncthreads();
    if constexpr (kMayBeMild) {
      findAllUps();
    } else {
      loadNorms<T>(memory_.kNorm, keys(), task_.normalize, 1);
      loadNorms<T>(memory_.qNorm, queries(), task_.normalize, task_.scale);
    }
    if constexpr (!kChannel) decayWithinBlocks(memory_.tokens);
    ptx::syncthreads();
    if constexpr (kChannel) {
      decays_.finish(started, task_, batch_, chunk_, head_);
      const bool mild = decayChannels();
      ptx::syncthreads();
      mild ? scoreBlocks<kMayBeMild>() : scoreBlocks<false>();
    } else {
      decayFromEnds(memory_.tokens);
      score();
    }
    ptx::syncthreads();
    if (kChannel) startValues(0);
    if constexpr (kChannel) {
      static_assert(SplitInverse<T>::kBytes <= kKeyBytes);
      const SplitInverse<T> inverse{memory_.square, memory_.queries};  // queries are not read any more
      if (warp_ < 2) {
        inverse.invertPairs(warp_);
      } else {
        storeRows(thread - 64, kThreads - 64);
      }
      ptx::syncthreads();
      if (warp_ < 4) inverse.mergeHalves(warp_, kMerge);
      ptx::syncthreads();
    } else {
      const Inverse inverse{memory_.square};
      if (warp_ < 2) {
        inverse.substitute();
        inverse.mergePair(warp_);
      } else {
        storeRows(thread - 64, kThreads - 64);
      }
      ptx::syncthreads();
      inverse.mergeHalves(warp_);
    }
    roundInverse();
    for (int first = 0; first < columns_; first += kKeys) writeValues(first);
  }

  SEQPAR_DEVICE KeyRows keys() const { return {memory_.keys}; }
  SEQPAR_DEVICE KeyRows queries() const { return {memory_.queries}; }
  SEQPAR_DEVICE KeyRows values() const { return {memory_.values}; }

  SEQPAR_DEVICE void startValues(int first) const {
    startTensor<kKeys, kThreads>(values(), {task_.v, batch_, chunk_, head_, first, task_.dv}, threadAgain());
    ptx::cpAsyncCommitGroup();
  }

  SEQPAR_DEVICE void score() {
    const int column = warp_ / 4 * 32;
    if (column > row_) return;
    float ofKeys[4][4] = {}, ofQueries[4][4] = {};
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys; k += kBlock) {
      uint32_t a[4], b[4];
      loadLeft<true>(a, keys(), row_, k, layout.lane);
      loadLeft<true>(b, queries(), row_, k, layout.lane);
      accumulateBoth<T, true>(ofKeys, a, ofQueries, b, keys(), column, k, layout.lane);
    }
    const TokenMemory& m = memory_.tokens;
    SEQPAR_UNROLL
    for (int block = 0; block < 2; ++block) {
      const int first = column + block * kBlock;
      if (first > row_) break;
      const bool isDiagonal = first == row_;
      float between = 1;
      for (int n = first / kBlock + 1; n < row_ / kBlock; ++n) between *= m.totals[n];
      SEQPAR_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int i = layout.row(row_, 2 * half);
        const float kNorm = memory_.kNorm[i], qNorm = memory_.qNorm[i], run = isDiagonal ? 1 : m.run[i] * between;
        SEQPAR_UNROLL
        for (int n = 2 * block; n < 2 * block + 2; ++n) {
          const int j = layout.column(column) + 8 * n;
          float low, high, kNorms[2];  // low, high: decays from j and j + 1 to i
          const float* const decays = isDiagonal ? m.within + (i * kBlock + j % kBlock) : m.suffix + j;
          ptx::loadPair(decays, low, high);
          ptx::loadPair(memory_.kNorm + j, kNorms[0], kNorms[1]);
          low = i >= j || !isDiagonal ? low * run : 0;
          high = i > j || !isDiagonal ? high * run : 0;
          const float *const k = ofKeys[n] + 2 * half, *const q = ofQueries[n] + 2 * half;
          putQueries(i, j, forgetting(low, qNorm * kNorms[0] * q[0]), forgetting(high, qNorm * kNorms[1] * q[1]));
          putKeys(i, j, forgetting(low, kNorm * kNorms[0] * k[0]), forgetting(high, kNorm * kNorms[1] * k[1]));
        }
      }
    }
  }
  SEQPAR_DEVICE void putQueries(int i, int j, float x, float y) {
    const bool used = i < chunk_.rows;
    storeRounded<T>(record_.scores + imageIndex(i, j), used && i >= j ? x : 0, used && i > j ? y : 0);
  }
  SEQPAR_DEVICE void putKeys(int i, int j, float x, float y) {
    const bool used = i < chunk_.rows;
    memory_.square[i * kSquare + j] = forgetting(memory_.beta[i], used && i > j ? x : 0);
    memory_.square[i * kSquare + j + 1] = forgetting(memory_.beta[i], used && i > j + 1 ? y : 0);
  }

  // Decays of channels (prepare_channels.h):
  SEQPAR_DEVICE void findAllUps() const;
  SEQPAR_DEVICE bool isMild() const;
  SEQPAR_DEVICE bool decayChannels();
  SEQPAR_DEVICE static int placeOf(int t, int c);
  SEQPAR_DEVICE static uint32_t& pairAt(int at);
  template <bool kForgets>
  SEQPAR_DEVICE void decayRows();
  SEQPAR_DEVICE void decayMildRows();
  SEQPAR_DEVICE void balance(BlockDecays::Ends& ends, float (&run)[2]) const;
  template <bool kMild>
  SEQPAR_DEVICE void scoreBlocks();
  SEQPAR_DEVICE KeyRows second(const KeyRows& rows) const { return {rows.offset + memory_.second}; }
  SEQPAR_DEVICE float sumOfParts(const KeyRows& rows, int r, int c) const {
    const float x = ptx::lowOf<Bf16>(*rows.at(r, c));
    return kParts == 2 ? x + ptx::lowOf<Bf16>(*second(rows).at(r, c)) : x;
  }
  SEQPAR_DEVICE void scoreSteep(int row);

  /// Keys to the chunk's end and queries from its start, the chunk's decays, and factors of rows.
  SEQPAR_DEVICE void storeRows(int thread, int threads) {
    clearUpper(record_.scores, thread, threads);
    for (int c = thread; c < kKeys; c += threads) {
      float total = 1;
      for (int n = 0; n < kBlocks; ++n) total *= kChannel ? memory_.totals[n * kKeys + c] : memory_.tokens.totals[n];
      record_.total[c] = total;
      record_.norms[c] = memory_.kNorm[c];  // qNorm is behind it
    }
    if constexpr (!kChannel) {
      constexpr int kUnits = kKeys / 8;
      for (int i = thread; i < kRows * kUnits; i += threads) {
        const int t = i / kUnits, unit = i % kUnits;
        const float in = memory_.tokens.in[t], out = memory_.tokens.out[t], kNorm = memory_.kNorm[t],
                    qNorm = memory_.qNorm[t];
        uint32_t k[4], q[4];
        ptx::load(k, keys().unit(t, unit));
        ptx::load(q, queries().unit(t, unit));
        SEQPAR_UNROLL
        for (int j = 0; j < 4; ++j) {
          k[j] =
              ptx::pack<T>(forgetting(out, kNorm * ptx::lowOf<T>(k[j])), forgetting(out, kNorm * ptx::highOf<T>(k[j])));
          q[j] =
              ptx::pack<T>(forgetting(in, qNorm * ptx::lowOf<T>(q[j])), forgetting(in, qNorm * ptx::highOf<T>(q[j])));
        }
        ptx::storeGlobal(record_.kOut + imageIndex(t, unit * 8), k);
        ptx::storeGlobal(record_.qIn + imageIndex(t, unit * 8), q);
      }
    }
  }

  SEQPAR_DEVICE void roundInverse() {
    const SquareRows ofKeys{memory_.ofKeys}, ofValues{memory_.ofValues};
    const int thread = threadAgain(), r = thread / 4;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {  // a thread has 16 columns of a row
      const int unit = thread % 4 + 4 * n;
      uint32_t keyWords[4], valueWords[4], words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int c = unit * 8 + 2 * i;
        float low, high, beta[2];
        ptx::loadPair(memory_.square + r * kSquare + c, low, high);
        ptx::loadPair(memory_.beta + c, beta[0], beta[1]);
        low = c <= r ? low : 0;
        high = c < r ? high : 0;
        words[i] = ptx::pack<T>(low, high);
        valueWords[i] = ptx::pack<T>(forgetting(beta[0], low), forgetting(beta[1], high));
        if constexpr (!kChannel) {
          float in[2], norm[2];
          ptx::loadPair(memory_.tokens.in + c, in[0], in[1]);
          ptx::loadPair(memory_.kNorm + c, norm[0], norm[1]);
          keyWords[i] =
              ptx::pack<T>(forgetting(in[0] * norm[0] * beta[0], low), forgetting(in[1] * norm[1] * beta[1], high));
        }
      }
      ptx::store(ofValues.unit(r, unit), valueWords);
      if constexpr (!kChannel) ptx::store(ofKeys.unit(r, unit), keyWords);
      if (hasInverse(task_)) ptx::storeGlobal(record_.inverse + imageIndex(r, unit * 8), words);
    }
    ptx::cpAsyncWaitGroup<0>();  // values
    ptx::syncthreads();
  }

  /// W, with the first columns, and the transpose of U.
  SEQPAR_DEVICE void writeValues(int first) {
    const int width = columns_ - first < kKeys ? columns_ - first : kKeys, row = warp_ * kBlock;
    if (first > 0) {
      ptx::syncthreads();
      startValues(first);
      ptx::cpAsyncWaitGroup<0>();
      ptx::syncthreads();
    }
    if (first == 0) writeKeys();
    float c[kRows / 8][4] = {};
    const SquareRows inverse{memory_.ofValues}, u{memory_.u};
    if (row < width) {
      SEQPAR_UNROLL
      for (int k = 0; k < kRows / kBlock; ++k) {
        uint32_t a[4];
        loadLeft<false>(a, values(), row, k * kBlock);
        accumulate<T, true>(c, a, inverse, 0, k * kBlock, 2 * k);
      }
      if (!allFinite(c)) {
        recompute(c, row, 0, [&](int v, int t) {
          return sumForgetting<T, true, false>(inverse, t, values(), v, 0, t / kBlock * kBlock + kBlock);
        });
      }
    }
    ptx::syncthreads();
    if (row < width) {
      SEQPAR_UNROLL
      for (int k = 0; k < kRows / kBlock; ++k) {
        uint32_t pairs[4];
        roundTiles<T>(pairs, c[2 * k], c[2 * k + 1]);
        storeLeft(u, row, k * kBlock, pairs);
      }
    }
    ptx::syncthreads();
    if (first == 0) storeImage<kKeyBytes, kThreads>(record_.w, memory_.w, threadAgain());
    uint16_t* const to = record_.written + int64_t{first} * kRows;
    storeImage<kSquareBytes, kThreads>(to, u.offset, threadAgain());
    if (width > kColumns) {
      storeImage<kSquareBytes, kThreads>(to + kColumns * kRows, u.offset + kSquareBytes, threadAgain());
    }
  }
  SEQPAR_DEVICE void writeKeys() {
    const int column = warp_ / 4 * 64;
    const SquareRows inverse{memory_.ofKeys};
    const KeyRows rows{kChannel ? memory_.kIn : memory_.keys};
    const KeyPanels<kRows> w{memory_.w};
    float c[8][4] = {};
    for (int k = 0; k <= row_; k += kBlock) {
      uint32_t a[4];
      loadLeft<true>(a, inverse, row_, k);
      accumulate<T, false>(c, a, rows, column, k);
    }
    if (!allFinite(c)) {
      recompute(c, row_, column,
                [&](int t, int n) { return sumForgetting<T, true, false>(inverse, t, rows, n, 0, row_ + kBlock); });
    }
    SEQPAR_UNROLL
    for (int k = 0; k < 4; ++k) {
      uint32_t pairs[4];
      roundTiles<T>(pairs, c[2 * k], c[2 * k + 1]);
      storeLeft(w, row_, column + k * kBlock, pairs);
    }
  }

  struct NoDecays {};
  const Task& task_;
  const int columns_, warp_, row_;  ///< row_: the first of the warp's strip
  int head_;
  int64_t batch_;
  Chunk chunk_;
  Record record_;
  PrepareMemory memory_;
  std::conditional_t<kChannel, BlockDecays, NoDecays> decays_;
};

}  // namespace seqpar::attn::delta::half
