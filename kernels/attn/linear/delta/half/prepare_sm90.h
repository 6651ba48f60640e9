// The first step on sm_90a for 16-bit tensors with Task::readsRows: scores, the inverse, and factors of tokens
// (RowFactor).
//
// Work      a CTA of 256 threads, four per SM, has one (chunk, head, batch entry)
// Roles     two warpgroups: the first has the products of keys, the second those of queries. Blocks of 32 x 32 of the
//           inverse by two warps, while the second warpgroup stores scores and factors of tokens; the merge by four
// Tiles     chunks of 64 tokens x 128 channels
// Smem      PrepareSm90Memory
// Barriers  __syncthreads() between steps; named, kMerge: the first four warps have read L
#pragma once

#include "kernels/arch/gpu_words.h"
#include "kernels/attn/linear/delta/half/inverse_split.h"
#include "kernels/attn/linear/delta/half/panels_sm90.h"

namespace seqpar::attn::delta::half {

template <class T>
class PrepareSm90 {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { PrepareSm90(task).steps(); }

 private:
  using KeyTile = KeyPanels<kRows>;
  static constexpr int kMerge = 1;  ///< named barrier of the first four warps

  SEQPAR_DEVICE explicit PrepareSm90(const Task& t)
      : task_(t), warp_(ptx::uniform(threadAgain() / 32)), row_(warp_ % 4 * kBlock), group_(warp_ / 4) {
    const RecordPlace place(t, t.heads);
    head_ = place.head;
    // A forward's chains start from the first chunks, which L2 still has if they are last; Retreat from the last ones.
    number_ = t.training ? place.number : t.count - 1 - place.number;
    batch_ = place.batch;
    chunk_ = t.chunks[t.first + number_];
    memory_.place();
  }

  SEQPAR_DEVICE void steps() {
    const int keyHead = keyHeadOf(task_, head_), thread = threadAgain();
    const auto start = [&](int to, const Input& tensor) {
      startTensor<kKeys, kThreadsSm90>(KeyTile{to}, {tensor, batch_, chunk_, keyHead, 0, task_.dk}, thread);
    };
    start(memory_.keys, task_.k);
    start(memory_.queries, task_.q);
    ptx::cpAsyncCommitGroup();
    loadGates();
    ptx::cpAsyncWaitGroup<0>();
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    float scores[kRows / 8][4];
    warpgroup::arrive();
    multiplyTerms<T, Terms::AlongRows, Terms::AlongRows, kKeys>(
        scores, operand(group_ == 0 ? memory_.keys : memory_.queries), operand(memory_.keys), false);
    warpgroup::commit();
    if (group_ == 1) {
      storeQueryNorms();
    } else {
      decayWithinBlocks(memory_.tokens);  // not before the products: the other warps would wait
    }
    warpgroup::wait<0>();
    warpgroup::fenceOperand(scores);
    if (group_ == 0) storeKeyNorms(scores);
    ptx::syncthreads();
    decayFromEnds(memory_.tokens);
    isFinite() ? scaleScores<true>(scores) : scaleScores<false>(scores);
    storeScores(scores);
    ptx::syncthreads();
    static_assert(SplitInverse<T>::kBytes <= kKeyBytes);
    const SplitInverse<T> inverse{memory_.square, memory_.queries};
    if (warp_ < 2) {
      inverse.invertPairs(warp_);
    } else if (warp_ >= 4) {
      storeImage<kSquareBytes, 128>(record().scores, memory_.keys, threadAgain() - 128);
      storeFactors(threadAgain() - 128);
    }
    ptx::syncthreads();
    if (warp_ < 4) inverse.mergeHalves(warp_, kMerge);
    ptx::syncthreads();
    storeInverse();
  }

  SEQPAR_DEVICE Record record() const { return recordOf(task_, batch_, head_, number_); }

  SEQPAR_DEVICE void loadGates() {
    const int t = threadAgain();
    if (t >= kRows) return;
    const TokenGates gates(task_, batch_, chunk_, head_, true);
    memory_.beta[t] = gates.betaOf(task_, chunk_);
    memory_.tokens.decay[t] = gates.decayOf(task_, chunk_);
  }

  /// Whether keys, queries, betas and decays are. A warp.
  SEQPAR_DEVICE bool isFinite() const {
    const int lane = threadAgain() % 32;
    const float *const beta = memory_.beta, *const decay = memory_.tokens.decay;
    const float zero = (0 * beta[lane] + 0 * beta[lane + 32]) + (0 * decay[lane] + 0 * decay[lane + 32]);
    return ptx::voteAll(memory_.finite[lane % kWarps] != 0 && zero == 0);
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
    const bool has = lane % 4 == g / 2;
    const float squares[2] = {g % 2 == 0 ? c[0][0] : c[0][1], g % 2 == 0 ? c[1][2] : c[1][3]};
    const bool finite = ptx::voteAll(!has || 0 * squares[0] + 0 * squares[1] == 0);
    if (lane == 0) memory_.finite[warp_] = finite ? 1 : 0;
    if (!has) return;
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      norms[row_ + 8 * h + g] = scale * (task_.normalize ? 1 / sqrtf(squares[h] + 1e-6F) : 1);
    }
  }

  /// The warpgroup's products, times lengths and decays between tokens, to shared memory: L, and scores in place of
  /// keys.
  SEQPAR_DEVICE void storeScores(float (&c)[kRows / 8][4]) const {
    if (group_ == 1) {
      SEQPAR_UNROLL
      for (int n = 0; n < kBlocks; ++n) {
        uint32_t words[4];
        roundTiles<T>(words, c[2 * n], c[2 * n + 1]);
        storeLeft(SquareRows{memory_.keys}, row_, n * kBlock, words);
      }
      return;
    }
    SEQPAR_UNROLL
    for (int n = 0; n < kBlocks; ++n) {
      if (n > row_ / kBlock) break;
      eachPair(reinterpret_cast<float(&)[2][4]>(c[2 * n]), row_, n * kBlock,
               [&](int i, int j, float x, float y) { ptx::storePair(memory_.square + i * kSquare + j, x, y); });
    }
  }
  /// kExact: for finite products and factors. Else a factor of 0 forgets.
  template <bool kExact>
  SEQPAR_DEVICE void scaleScores(float (&c)[kRows / 8][4]) const {
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
      if constexpr (kExact) run[h] *= norm[h];
    }
    SEQPAR_UNROLL
    for (int n = kBlocks; n-- > 0;) {  // blocks of columns
      if (n < block - 1) {
        const float between = m.totals[n + 1];
        run[0] *= between;
        run[1] *= between;
      }
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
          if (n < block) {
            if constexpr (kExact) {
              x *= kNorms[0] * suffix[0] * run[h];
              y *= kNorms[1] * suffix[1] * run[h];
            } else {
              x = forgetting(suffix[0] * run[h], norm[h] * kNorms[0] * x);
              y = forgetting(suffix[1] * run[h], norm[h] * kNorms[1] * y);
            }
          } else {
            float low, high;
            ptx::loadPair(m.within + (row[h] * kBlock + j % kBlock), low, high);
            x *= norm[h] * kNorms[0];
            y *= norm[h] * kNorms[1];
            x = j > last[h] ? 0 : kExact ? low * x : forgetting(low, x);
            y = j + 1 > last[h] ? 0 : kExact ? high * y : forgetting(high, y);
          }
        }
      }
    }
  }
  SEQPAR_DEVICE void storeFactors(int t) const {
    const bool finite = isFinite();
    if (t >= kRows) return;
    const Record r = record();
    float* const to = r.factors + t;
    const float in = memory_.tokens.in[t], out = memory_.tokens.out[t];
    const float ofKey = memory_.kNorm[t], ofQuery = memory_.qNorm[t];
    to[kOfKeysIn] = forgetting(in, ofKey);
    to[kOfKeysOut] = forgetting(out, ofKey);
    to[kOfQueries] = forgetting(in, ofQuery);
    r.norms[t] = ofKey;
    r.norms[t + kRows] = ofQuery;
    if (t > 1) return;
    float total = 1;
    SEQPAR_UNROLL
    for (int n = 0; n < kBlocks; ++n) total *= memory_.tokens.totals[n];
    to[kOfChunk] = t == 0 ? total : finite ? 1 : 0;
  }
  /// The inverse and its product with betas, to the record.
  SEQPAR_DEVICE void storeInverse() const {
    if (storeInverse<true>()) return;
    storeInverse<false>();
    ptx::storeRelaxedGpu(reinterpret_cast<uint32_t*>(record().factors + kOfChunk + 1), 0);  // behind a barrier
  }
  /// A thread has 16 columns of a row. kExact: for finite elements. Returns whether the thread's are.
  template <bool kExact>
  SEQPAR_DEVICE bool storeInverse() const {
    const int thread = threadAgain(), r = thread / 4;
    const Record record = this->record();
    const bool keepsInverse = hasInverse(task_);
    float zero = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int unit = thread % 4 + 4 * n, at = imageIndex(r, unit * 8);
      uint32_t scaled[4] = {};
      float x[8] = {};
      if (n == 0 || r >= kRows / 2) {  // a warp's rows
        float beta[8];
        SEQPAR_UNROLL
        for (int i = 0; i < 8; i += 4) {
          loadFour(x + i, memory_.square + r * kSquare + unit * 8 + i);
          loadFour(beta + i, memory_.beta + unit * 8 + i);
        }
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int c = unit * 8 + 2 * i;
          x[2 * i] = c <= r ? x[2 * i] : 0;
          x[2 * i + 1] = c < r ? x[2 * i + 1] : 0;
          float y[2];
          SEQPAR_UNROLL
          for (int h = 0; h < 2; ++h) {
            const float b = beta[2 * i + h], value = x[2 * i + h];
            y[h] = kExact ? b * value : forgetting(b, value);
            zero += 0 * y[h];
          }
          scaled[i] = ptx::pack<T>(y[0], y[1]);
        }
      }
      ptx::storeGlobal(record.scaled + at, scaled);
      if (!keepsInverse) continue;
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = ptx::pack<T>(x[2 * i], x[2 * i + 1]);
      ptx::storeGlobal(record.inverse + at, words);
    }
    return zero == 0;
  }
  SEQPAR_DEVICE static void loadFour(float* to, const float* from) {
    uint32_t words[4];
    ptx::load(words, from);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = asFloat(words[i]);
  }

  const Task& task_;
  const int warp_, row_, group_;
  int number_, head_;
  int64_t batch_;
  Chunk chunk_;
  PrepareSm90Memory memory_;
};

}  // namespace seqpar::attn::delta::half
