// The first step for 16-bit tensors: the parts of a chunk's recurrence that depend on no state.
//
// Work      a CTA of 256 threads has one (chunk, head, batch entry)
// Roles     products by warps; blocks of 16 x 16 of the inverse by substitution and the first merges by two warps,
//           while the others store decayed rows; merges of blocks as three TF32 products
// Tiles     chunks of 64 tokens x 128 channels
// Smem      PrepareMemory; tiles that have been used are replaced
// Barriers  __syncthreads() between steps
// Overlap   cp.async loads values during the products of keys. Task::overlaps
#pragma once

#include "kernels/attn/linear/delta/half/channels.h"
#include "kernels/attn/linear/delta/half/inverse.h"
#include "kernels/attn/linear/delta/half/tokens.h"

namespace seqpar::attn::delta::half {

/// kChannel: decays of channels.
template <class T, bool kChannel>
class Prepare {
 public:
  SEQPAR_DEVICE static void run(const Task& task) {
    Prepare(task).steps();
    endOverlap(task);
  }

 private:
  static constexpr int kParts = ptx::kIsBf16<T> ? 1 : 2;

  SEQPAR_DEVICE explicit Prepare(const Task& t)
      : task_(t), columns_(paddedColumns(t)), warp_(ptx::uniform(threadAgain() / 32)), row_(warp_ % 4 * kBlock) {
    int index = ptx::block();
    const int chunk = index % t.count;
    index /= t.count;
    head_ = index % t.heads;
    batch_ = index / t.heads;
    chunk_ = t.chunks[t.first + chunk];
    record_ = recordOf(t, batch_, head_, chunk);
    memory_.place(kChannel, kParts);
  }

  SEQPAR_DEVICE void steps() {
    const int keyHead = head_ / (task_.heads / task_.keyHeads), thread = threadAgain();
    startTensor<kKeys, kThreads>(keys(), {task_.k, batch_, chunk_, keyHead, 0, task_.dk}, thread);
    startTensor<kKeys, kThreads>(queries(), {task_.q, batch_, chunk_, keyHead, 0, task_.dk}, thread);
    ptx::cpAsyncCommitGroup();
    if constexpr (!kChannel) startValues(0);
    loadGates();
    if constexpr (kChannel) {
      prefetchTensor<kKeys, kThreads>({task_.v, batch_, chunk_, head_, 0, task_.dv}, thread);
    }
    ptx::cpAsyncWaitGroup<kChannel ? 0 : 1>();
    ptx::syncthreads();
    loadNorms<T>(memory_.kNorm, keys(), task_.normalize, 1);
    loadNorms<T>(memory_.qNorm, queries(), task_.normalize, task_.scale);
    if constexpr (!kChannel) decayWithinBlocks(memory_.tokens);
    ptx::syncthreads();
    if constexpr (kChannel) {
      decayChannels();
      ptx::syncthreads();
      scoreBlocks();
    } else {
      decayFromEnds(memory_.tokens);
      score();
    }
    ptx::syncthreads();
    if (kChannel) startValues(0);
    const Inverse inverse{memory_.square};
    if (warp_ < 2) {
      inverse.substitute();
      inverse.mergePair(warp_);
    } else {
      storeRows(thread - 64, kThreads - 64);
    }
    ptx::syncthreads();
    inverse.mergeHalves(warp_);
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

  SEQPAR_DEVICE void loadGates() {
    const int t = threadAgain();
    if (t < kRows) {
      memory_.beta[t] = betaOf(task_, batch_, chunk_, head_, t);
      if constexpr (!kChannel) memory_.tokens.decay[t] = decayOf(task_, batch_, chunk_, head_, t);
    }
    if constexpr (kChannel) decays_.load(task_, batch_, chunk_, head_);
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

  /// Rows of ChannelRows, and keys to the chunk's end.
  SEQPAR_DEVICE void decayChannels() {
    decays_.storeTotals(memory_.totals, memory_.steep);
    ptx::syncthreads();
    if (decays_.template allFinite<T>(keys()) && decays_.template allFinite<T>(queries())) {
      decayRows<false>();
    } else {
      decayRows<true>();
    }
  }
  /// kForgets: rows may have NaN or infinity, which factors of 0 discard.
  template <bool kForgets>
  SEQPAR_DEVICE void decayRows() {
    const int block = decays_.block(), c = decays_.channel();
    const auto times = [](float factor, float x) { return kForgets ? forgetting(factor, x) : factor * x; };
    const auto put = [&](int tile, int row, float low, float high) {
      const uint32_t pair = ptx::pack<Bf16>(low, high);
      KeyRows{tile}.pair(row, c) = pair;
      if constexpr (kParts == 2) {
        KeyRows{tile + memory_.second}.pair(row, c) =
            ptx::pack<Bf16>(low - ptx::lowOf<Bf16>(pair), high - ptx::highOf<Bf16>(pair));
      }
    };
    const auto ends = BlockDecays::ends(memory_.totals);
    const auto &before = ends.before, &after = ends.after;
    uint32_t raw[kBlock];
    float run[2] = {1, 1};
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      const int t = block * kBlock + i;
      const float kNorm = memory_.kNorm[t], qNorm = memory_.qNorm[t];
      const uint32_t k = keys().pair(t, c), q = queries().pair(t, c);
      raw[i] = ptx::pack<T>(kNorm * ptx::lowOf<T>(k), kNorm * ptx::highOf<T>(k));
      const float key[2] = {ptx::lowOf<T>(raw[i]), ptx::highOf<T>(raw[i])};
      const float query[2] = {qNorm * ptx::lowOf<T>(q), qNorm * ptx::highOf<T>(q)};
      float inverse[2];
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        run[e] *= decays_.of[i][e];
        inverse[e] = ptx::rcpApprox(run[e]);
      }
      put(memory_.kNear, t, times(run[0], key[0]), times(run[1], key[1]));
      put(memory_.qNear, t, times(run[0], query[0]), times(run[1], query[1]));
      put(memory_.kInverse, t, inverse[0] * key[0], inverse[1] * key[1]);
      const float in[2] = {run[0] * before[0], run[1] * before[1]};
      KeyRows{memory_.kIn}.pair(t, c) = ptx::pack<T>(times(in[0], key[0]), times(in[1], key[1]));
      storeRounded<T>(record_.qIn + imageIndex(t, c), times(in[0], query[0]), times(in[1], query[1]));
    }
    float suffix[2] = {1, 1};
    SEQPAR_UNROLL
    for (int i = kBlock; i-- > 0;) {
      const int t = block * kBlock + i;
      const float key[2] = {ptx::lowOf<T>(raw[i]), ptx::highOf<T>(raw[i])};
      storeRounded<T>(record_.kOut + imageIndex(t, c), times(suffix[0] * after[0], key[0]),
                      times(suffix[1] * after[1], key[1]));
      SEQPAR_UNROLL
      for (int n = 1; n < kBlocks; ++n) {
        if (n > block) {
          put(memory_.near, nearRow(n) + t, times(suffix[0] * ends.toStart[n][0], key[0]),
              times(suffix[1] * ends.toStart[n][1], key[1]));
        }
      }
      suffix[0] *= decays_.of[i][0];
      suffix[1] *= decays_.of[i][1];
    }
  }

  /// Scores of 16 tokens with 16 others, for decays of channels.
  SEQPAR_DEVICE void scoreBlocks() {
    constexpr int kLower = kBlocks * (kBlocks + 1) / 2;
    SEQPAR_ROLLED
    for (int item = warp_; item < 2 * kLower; item += kWarps) {
      const bool ofKeys = item < kLower;
      const int index = item % kLower, block = (index >= 1) + (index >= 3) + (index >= 6);
      const int row = block * kBlock, other = (index - block * (block + 1) / 2) * kBlock;
      const bool isDiagonal = other == row;
      if (isDiagonal && isSteep(memory_.steep, block)) {
        if (ofKeys) scoreSteep(row);
        continue;
      }
      const KeyRows left{ofKeys ? memory_.kNear : memory_.qNear};
      const KeyRows right{isDiagonal ? memory_.kInverse : memory_.near};
      const int column = isDiagonal ? row : nearRow(block) + other;
      float c[2][4] = {};
      SEQPAR_UNROLL
      for (int k = 0; k < kKeys; k += kBlock) {
        uint32_t a[4];
        loadLeft<true>(a, left, row, k);
        accumulate<Bf16, true>(c, a, right, column, k);
        if constexpr (kParts == 2) {
          accumulate<Bf16, true>(c, a, second(right), column, k);
          loadLeft<true>(a, second(left), row, k);
          accumulate<Bf16, true>(c, a, right, column, k);
        }
      }
      if (!allFinite(c)) {
        recompute(c, row, column, [&](int i, int j) {
          float total = 0;
          for (int k = 0; k < kKeys; ++k) total += forgetting(sumOfParts(left, i, k), sumOfParts(right, j, k));
          return total;
        });
      }
      eachPair(c, row, other,
               [&](int i, int j, float x, float y) { ofKeys ? putKeys(i, j, x, y) : putQueries(i, j, x, y); });
    }
  }
  SEQPAR_DEVICE KeyRows second(const KeyRows& rows) const { return {rows.offset + memory_.second}; }
  SEQPAR_DEVICE float sumOfParts(const KeyRows& rows, int r, int c) const {
    const float x = ptx::lowOf<Bf16>(*rows.at(r, c));
    return kParts == 2 ? x + ptx::lowOf<Bf16>(*second(rows).at(r, c)) : x;
  }
  SEQPAR_DEVICE void scoreSteep(int row) {
    const SteepRows<T> rows{task_, batch_, chunk_, head_, memory_.kNorm, memory_.qNorm};
    for (int j = row; j < row + kBlock; j += 2) {
      for (int i = row + threadAgain() % 32; i < j; i += 32) {
        putKeys(i, j, 0, 0);
        putQueries(i, j, 0, 0);
      }
      rows.score(j, [&](int i, float key, float query, float nextKey, float nextQuery) {
        putKeys(i, j, key, nextKey);
        putQueries(i, j, query, nextQuery);
      });
    }
  }

  /// Keys to the chunk's end and queries from its start, and the chunk's decays.
  SEQPAR_DEVICE void storeRows(int thread, int threads) {
    clearUpper(record_.scores, thread, threads);
    for (int c = thread; c < kKeys; c += threads) {
      float total = 1;
      for (int n = 0; n < kBlocks; ++n) total *= kChannel ? memory_.totals[n * kKeys + c] : memory_.tokens.totals[n];
      record_.total[c] = total;
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
        ptx::store(record_.kOut + imageIndex(t, unit * 8), k);
        ptx::store(record_.qIn + imageIndex(t, unit * 8), q);
      }
    }
  }

  SEQPAR_DEVICE void roundInverse() {
    const SquareRows ofKeys{memory_.ofKeys}, ofValues{memory_.ofValues};
    SEQPAR_UNROLL
    for (int i = threadAgain(); i < kRows * kRows / 2; i += kThreads) {
      const int r = i / (kRows / 2), c = i % (kRows / 2) * 2;
      const float low = c <= r ? memory_.square[r * kSquare + c] : 0,
                  high = c < r ? memory_.square[r * kSquare + c + 1] : 0;
      const float beta = memory_.beta[c], next = memory_.beta[c + 1];
      ofValues.pair(r, c) = ptx::pack<T>(forgetting(beta, low), forgetting(next, high));
      if constexpr (!kChannel) {
        const float key = memory_.tokens.in[c] * memory_.kNorm[c],
                    nextKey = memory_.tokens.in[c + 1] * memory_.kNorm[c + 1];
        ofKeys.pair(r, c) = ptx::pack<T>(forgetting(key * beta, low), forgetting(nextKey * next, high));
      }
      if (task_.training) storeRounded<T>(record_.inverse + r * kRows + c, low, high);
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
