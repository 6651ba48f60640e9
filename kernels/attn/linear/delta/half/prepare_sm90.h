// The first step on sm_90a for 16-bit tensors, for decays of tokens and without decays: Prepare (prepare.h) with wgmma.
//
// Work      a CTA of 256 threads, four per SM, has one (chunk, head, batch entry)
// Roles     two warpgroups: the first has the products of keys, the second those of queries; then each has 64 channels
//           of W and 64 columns of U. Blocks of 16 x 16 of the inverse by substitution and the first merges by two
//           warps, while the others store decayed rows
// Tiles     chunks of 64 tokens x 128 channels
// Smem      PrepareSm90Memory, 55 KiB; the operands of W and U replace queries, values replace the inverse, W and U
//           replace keys and values
// Barriers  __syncthreads() between steps; those of a warpgroup before and after W and U are stored
// Overlap   cp.async loads values, which the first step has prefetched to L2, during the product of W; W and U leave
// with
//           bulk copies. Task::overlaps
#pragma once

#include "kernels/attn/linear/delta/half/inverse.h"
#include "kernels/attn/linear/delta/half/panels_sm90.h"

namespace seqpar::attn::delta::half {

template <class T>
class PrepareSm90 {
 public:
  SEQPAR_DEVICE static void run(const Task& task) {
    PrepareSm90(task).steps();
    endOverlap(task);
  }

 private:
  using KeyTile = KeyPanels<kRows>;
  static constexpr int kAll = kThreadsSm90;

  SEQPAR_DEVICE explicit PrepareSm90(const Task& t)
      : task_(t), warp_(ptx::uniform(threadAgain() / 32)), row_(warp_ % 4 * kBlock), group_(warp_ / 4) {
    const RecordPlace place(t, t.heads);
    head_ = place.head;
    number_ = place.number;
    batch_ = place.batch;
    chunk_ = t.chunks[t.first + number_];
    memory_.place();
  }

  SEQPAR_DEVICE void steps() {
    const int keyHead = keyHeadOf(task_, head_), thread = threadAgain();
    startTensor<kKeys, kAll>(keys(), {task_.k, batch_, chunk_, keyHead, 0, task_.dk}, thread);
    startTensor<kKeys, kAll>(queries(), {task_.q, batch_, chunk_, keyHead, 0, task_.dk}, thread);
    ptx::cpAsyncCommitGroup();
    prefetchTensor<kKeys>({task_.v, batch_, chunk_, head_, 0, task_.dv}, thread);
    loadGates();
    ptx::cpAsyncWaitGroup<0>();
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    float scores[kRows / 8][4];
    warpgroup::arrive();
    multiplyTerms<T, Terms::AlongRows, Terms::AlongRows, kKeys>(
        scores, operand(group_ == 0 ? memory_.keys : memory_.queries), operand(memory_.keys), false);
    warpgroup::commit();
    decayWithinBlocks(memory_.tokens);
    if (group_ == 1) storeQueryNorms();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(scores);
    if (group_ == 0) storeKeyNorms(scores);
    ptx::syncthreads();
    decayFromEnds(memory_.tokens);
    storeScores(scores);
    ptx::syncthreads();
    const Inverse inverse{memory_.square};
    if (warp_ < 2) {
      inverse.substitute();
      inverse.mergePair(warp_);
    } else {
      storeRows(thread - 64);
    }
    ptx::syncthreads();
    if (group_ == 1) storeFactors(thread - warpgroup::kThreads);
    inverse.mergeHalves(warp_);
    roundInverse();
    startValues(0);
    writeKeys();
    const int columns = paddedColumns(task_);
    for (int first = 0; first < columns; first += kKeys) writeValues(first, columns);
    ptx::cpAsyncBulkWaitGroup();
  }

  SEQPAR_DEVICE KeyTile keys() const { return {memory_.keys}; }
  SEQPAR_DEVICE KeyTile queries() const { return {memory_.queries}; }
  SEQPAR_DEVICE KeyTile values() const { return {memory_.values}; }
  SEQPAR_DEVICE Record record() const { return recordOf(task_, batch_, head_, number_); }

  SEQPAR_DEVICE void startValues(int first) const {
    startTensor<kKeys, kAll>(values(), {task_.v, batch_, chunk_, head_, first, task_.dv}, threadAgain());
    ptx::cpAsyncCommitGroup();
  }
  SEQPAR_DEVICE void loadGates() {
    const int t = threadAgain();
    if (t >= kRows) return;
    const TokenGates gates(task_, batch_, chunk_, head_, true);
    memory_.beta[t] = gates.betaOf(task_, chunk_);
    memory_.tokens.decay[t] = gates.decayOf(task_, chunk_);
  }

  /// The lengths of keys are the diagonal of the products of keys.
  SEQPAR_DEVICE void storeKeyNorms(const float (&c)[kRows / 8][4]) const {
    float diagonal[2][4] = {};
    SEQPAR_UNROLL
    for (int n = 0; n < kRows / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) diagonal[n % 2][e] = n / 2 == row_ / kBlock ? c[n][e] : diagonal[n % 2][e];
    }
    storeNorms(memory_.kNorm, diagonal, 1);
  }
  /// Those of queries are the diagonal of products of queries.
  SEQPAR_DEVICE void storeQueryNorms() const {
    float c[2][4] = {};
    const int lane = threadAgain() % 32;
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys; k += kBlock) {
      const SquareRows rows{memory_.queries + k / 64 * KeyTile::kPanelBytes};
      uint32_t a[4];
      loadLeft<true>(a, rows, row_, k % 64, lane);
      accumulate<T, true>(c, a, rows, row_, k % 64, 0, 2, lane);
    }
    storeNorms(memory_.qNorm, c, task_.scale);
    ptx::syncwarp();
  }
  /// norms = scale, divided by the lengths of the warp's 16 rows if rows are normalized; c: products of these rows.
  SEQPAR_DEVICE void storeNorms(float* norms, const float (&c)[2][4], float scale) const {
    const int lane = threadAgain() % 32, g = lane / 4;
    if (lane % 4 != g / 2) return;
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float square = g % 2 == 0 ? c[h][2 * h] : c[h][2 * h + 1];
      norms[row_ + 8 * h + g] = scale * (task_.normalize ? 1 / sqrtf(square + 1e-6F) : 1);
    }
  }

  /// The warpgroup's products, times lengths and decays between tokens: L to shared memory, scores to the record.
  SEQPAR_DEVICE void storeScores(float (&c)[kRows / 8][4]) const {
    const TokenMemory& m = memory_.tokens;
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    const int block = row_ / kBlock;
    int row[2], last[2];  // pairs with j <= last
    float norm[2], run[2];
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int i = row[h] = layout.row(row_, 2 * h);
      const float beta = group_ == 0 ? memory_.beta[i] : 1;
      const bool valid = i < chunk_.rows && beta != 0;  // a beta of 0 forgets
      norm[h] = beta * (group_ == 0 ? memory_.kNorm : memory_.qNorm)[i];
      last[h] = valid ? i - 1 + group_ : -1;
      run[h] = valid ? m.run[i] : 0;
    }
    float between = 1;
    SEQPAR_UNROLL
    for (int n = kBlocks; n-- > 0;) {  // blocks of columns
      if (n < block - 1) between *= m.totals[n + 1];
      SEQPAR_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int j = layout.column(8 * (2 * n + half));
        float(&tile)[4] = c[2 * n + half];
        if (n > block) {
          tile[0] = tile[1] = tile[2] = tile[3] = 0;
          continue;
        }
        float kNorms[2], suffix[2];
        ptx::loadPair(memory_.kNorm + j, kNorms[0], kNorms[1]);
        ptx::loadPair(m.suffix + j, suffix[0], suffix[1]);
        SEQPAR_UNROLL
        for (int h = 0; h < 2; ++h) {
          float &x = tile[2 * h], &y = tile[2 * h + 1];
          x *= norm[h] * kNorms[0];
          y *= norm[h] * kNorms[1];
          if (n < block) {
            x = forgetting(suffix[0] * between * run[h], x);
            y = forgetting(suffix[1] * between * run[h], y);
          } else {
            float low, high;
            ptx::loadPair(m.within + (row[h] * kBlock + j % kBlock), low, high);
            x = j <= last[h] ? forgetting(low, x) : 0;
            y = j + 1 <= last[h] ? forgetting(high, y) : 0;
          }
        }
      }
    }
    if (group_ == 0) {
      eachPair(c, row_, 0,
               [&](int i, int j, float x, float y) { ptx::storePair(memory_.square + i * kSquare + j, x, y); });
    } else {
      storeAsImage(record().scores, 0, c);
    }
  }
  /// Stores a warp's tiles as rows from row_ on, columns from `column` on, of an image.
  SEQPAR_DEVICE void storeAsImage(uint16_t* to, int column, const float (&c)[kRows / 8][4]) const {
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      storeTilesOfImage<T>(to, row_, column + 32 * n, reinterpret_cast<const float(&)[4][4]>(c[4 * n]));
    }
  }

  /// Keys to the chunk's end and queries from its start, the chunk's decays, and factors of rows.
  SEQPAR_DEVICE void storeRows(int thread) const {
    constexpr int kThreads = kAll - 64;
    const Record r = record();
    constexpr int kUnits = kKeys / 8;
    float total = 1;
    SEQPAR_UNROLL
    for (int n = 0; n < kBlocks; ++n) total *= memory_.tokens.totals[n];
    static_assert(kKeys == 2 * kRows);
    if (thread < kKeys) {
      r.total[thread] = total;
      r.norms[thread] = memory_.kNorm[thread];  // qNorm is behind it
    }
    // A row's units are at the same places of the tile and of the images. Row t + 4 has unit u at u ^ 4.
    static_assert(kThreads == 12 * kUnits);
    const int first = thread / kUnits, unit = thread % kUnits;
    const int at = unit / 8 * KeyTile::kPanelBytes + first * KeyTile::kRowBytes + (unit % 8 ^ first % 8) * 16;
    SEQPAR_ROLLED
    for (int step = 0; step < kRows; step += 24) {
      SEQPAR_UNROLL
      for (int i = 0; i < 24; i += 12) {
        const int t = first + step + i, of = (at ^ i % 8 * 16) + (step + i) * KeyTile::kRowBytes;
        if (t >= kRows) break;
        storeRow(r, t, of);
      }
    }
  }
  SEQPAR_DEVICE void storeRow(const Record& r, int t, int at) const {
    const float in = memory_.tokens.in[t], out = memory_.tokens.out[t];
    const float ofKeys = memory_.kNorm[t] * out, ofQueries = memory_.qNorm[t] * in;
    const uint32_t keepsKeys = out == 0 ? 0 : ~0U, keepsQueries = in == 0 ? 0 : ~0U;  // a decay of 0 forgets
    uint32_t k[4], q[4];
    ptx::load(k, ptx::sharedMemory() + (memory_.keys + at));
    ptx::load(q, ptx::sharedMemory() + (memory_.queries + at));
    SEQPAR_UNROLL
    for (int j = 0; j < 4; ++j) {
      k[j] = ptx::pack<T>(ofKeys * ptx::lowOf<T>(k[j]), ofKeys * ptx::highOf<T>(k[j])) & keepsKeys;
      q[j] = ptx::pack<T>(ofQueries * ptx::lowOf<T>(q[j]), ofQueries * ptx::highOf<T>(q[j])) & keepsQueries;
    }
    ptx::storeGlobal(r.kOut + at / 2, k);
    ptx::storeGlobal(r.qIn + at / 2, q);
  }

  /// Factors of the columns of W's operand, in place of the lengths of queries. 64 threads.
  SEQPAR_DEVICE void storeFactors(int t) const {
    if (t < kRows) memory_.qNorm[t] = memory_.tokens.in[t] * memory_.kNorm[t] * memory_.beta[t];
  }
  /// The operands of W and U, in place of queries, and the inverse for the backward. A thread has 16 columns of a row.
  SEQPAR_DEVICE void roundInverse() const {
    if (!ptx::voteAll(roundInverse<true>())) roundInverse<false>();
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
  }
  /// kExact: for finite elements. Returns whether the thread's are.
  template <bool kExact>
  SEQPAR_DEVICE bool roundInverse() const {
    const SquareRows ofKeys{memory_.ofKeys}, ofValues{memory_.ofValues};
    const int thread = threadAgain(), r = thread / 4;
    uint16_t* const inverse = record().inverse;
    const auto scaled = [](float factor, float x) { return kExact ? factor * x : forgetting(factor, x); };
    float zero = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int unit = thread % 4 + 4 * n;
      uint32_t keyWords[4], valueWords[4], words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int c = unit * 8 + 2 * i;
        float low, high, beta[2], factor[2];
        ptx::loadPair(memory_.square + r * kSquare + c, low, high);
        ptx::loadPair(memory_.beta + c, beta[0], beta[1]);
        ptx::loadPair(memory_.qNorm + c, factor[0], factor[1]);
        low = c <= r ? low : 0;
        high = c < r ? high : 0;
        zero += 0 * low + 0 * high;
        words[i] = ptx::pack<T>(low, high);
        valueWords[i] = ptx::pack<T>(scaled(beta[0], low), scaled(beta[1], high));
        keyWords[i] = ptx::pack<T>(scaled(factor[0], low), scaled(factor[1], high));
      }
      ptx::store(ofValues.unit(r, unit), valueWords);
      ptx::store(ofKeys.unit(r, unit), keyWords);
      if (hasInverse(task_)) ptx::storeGlobal(inverse + imageIndex(r, unit * 8), words);
    }
    return zero == 0;
  }
  /// Replaces the warpgroup's panel, which its products have read, by its tiles, and starts a copy to an image.
  SEQPAR_DEVICE void storePanel(uint16_t* to, int panel, const float (&c)[kRows / 8][4]) const {
    warpgroup::sync(group_);
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      uint32_t words[4];
      roundTiles<T>(words, c[2 * k], c[2 * k + 1]);
      storeLeft(SquareRows{panel}, row_, k * kBlock, words);
    }
    warpgroup::fenceProxyAsync();
    warpgroup::sync(group_);
    if (threadAgain() % warpgroup::kThreads != 0) return;
    ptx::cpAsyncBulkStore(to, ptx::sharedMemory() + panel, kSquareBytes);
    ptx::cpAsyncBulkCommitGroup();
  }

  /// W: the warpgroup's channels.
  SEQPAR_DEVICE void writeKeys() const {
    const int panel = group_ * KeyTile::kPanelBytes, channel = group_ * warpgroup::kPanel;
    const SquareRows inverse{memory_.ofKeys};
    float c[kRows / 8][4];
    warpgroup::arrive();
    multiplyTerms<T, Terms::AlongRows, Terms::Rows, kRows>(c, operand(memory_.ofKeys), operand(memory_.keys + panel),
                                                           false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(c);
    if (!ptx::voteAll(allFinite(c))) {
      recompute(c, row_, channel,
                [&](int t, int n) { return sumForgetting<T, true, false>(inverse, t, keys(), n, 0, row_ + kBlock); });
    }
    storePanel(record().w + channel * kRows, memory_.keys + panel, c);
  }
  /// The transpose of U: 64 columns of values per warpgroup.
  SEQPAR_DEVICE void writeValues(int first, int columns) const {
    if (first > 0) {
      ptx::cpAsyncBulkWaitGroupRead<0>();
      ptx::syncthreads();
      startValues(first);
    }
    ptx::cpAsyncWaitGroup<0>();
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    const int column = first + group_ * kColumns;
    const SquareRows inverse{memory_.ofValues};
    float c[kRows / 8][4];
    warpgroup::arrive();
    multiplyTerms<T, Terms::Rows, Terms::AlongRows, kRows>(c, operand(memory_.values + group_ * KeyTile::kPanelBytes),
                                                           operand(memory_.ofValues), false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(c);
    if (column >= columns) return;
    if (!ptx::voteAll(allFinite(c))) {
      const int own = group_ * kColumns + row_;
      recompute(c, own, 0, [&](int v, int t) {
        return sumForgetting<T, true, false>(inverse, t, values(), v, 0, t / kBlock * kBlock + kBlock);
      });
    }
    storePanel(record().written + int64_t{column} * kRows, memory_.values + group_ * KeyTile::kPanelBytes, c);
  }

  const Task& task_;
  const int warp_, row_, group_;
  int number_, head_;
  int64_t batch_;
  Chunk chunk_;
  PrepareSm90Memory memory_;
};

}  // namespace seqpar::attn::delta::half
