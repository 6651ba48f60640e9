// The first step for 16-bit tensors: what a chunk's recurrence needs and no state determines.
//
// Work: one CTA per (chunk, head, batch entry). Roles: products by warps, a strip of 16 rows and half of the columns
// each; blocks of 16 x 16 of the inverse by substitution, a column per lane of two warps, while the others store
// decayed rows; merges of blocks as three TF32 products. Smem: PrepareMemory; W and U replace keys and values.
// Barriers:
// __syncthreads() between steps. Overlap: none.
#pragma once

#include "kernels/attn/linear/delta/half/channels.h"

namespace seqpar::attn::delta::half {

/// kChannel: decays of channels.
template <class T, bool kChannel>
class Prepare {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Prepare(task).steps(); }

 private:
  SEQPAR_DEVICE explicit Prepare(const Task& t)
      : task_(t), columns_(paddedColumns(t)), warp_(ptx::uniform(ptx::thread() / 32)), row_(warp_ % 4 * kBlock) {
    int64_t index = ptx::block();
    const int chunk = static_cast<int>(index % t.count);
    index /= t.count;
    head_ = static_cast<int>(index % t.heads);
    batch_ = index / t.heads;
    chunk_ = t.chunks[t.first + chunk];
    record_ = recordOf(t, batch_, head_, chunk);
    memory_.place(ptx::sharedMemory(), kChannel);
  }

  SEQPAR_DEVICE void steps() {
    const int keyHead = head_ / (task_.heads / task_.keyHeads);
    loadTensor(memory_.keys, kKeyStride, task_.k, batch_, chunk_, keyHead, 0, kKeys, task_.dk);
    loadTensor(memory_.queries, kKeyStride, task_.q, batch_, chunk_, keyHead, 0, kKeys, task_.dk);
    if constexpr (!kChannel) loadValues(0);
    loadGates();
    ptx::syncthreads();
    loadNorms<T>(memory_.kNorm, memory_.keys, task_.normalize, 1);
    loadNorms<T>(memory_.qNorm, memory_.queries, task_.normalize, task_.scale);
    if constexpr (kChannel) {
      ptx::syncthreads();
      scaleRows<T>(memory_.keys, memory_.kNorm);
      scaleRows<T>(memory_.queries, memory_.qNorm);
      ptx::syncthreads();
      decayChannels<T>(memory_.channels, task_, batch_, chunk_, head_, memory_.keys, memory_.queries, record_.kOut);
      scoreBlocks();
    } else {
      decaysBetween(memory_.lower, memory_.decay, memory_.in, memory_.out);
      ptx::syncthreads();
      score();
    }
    ptx::syncthreads();
    if (warp_ < 2) {
      substitute();
    } else {
      decayRows(ptx::thread() - 64, kThreads - 64);
    }
    ptx::syncthreads();
    merge(kBlock, 2);
    merge(2 * kBlock, 1);
    roundInverse();
    ptx::syncthreads();
    for (int first = 0; first < columns_; first += kKeys) writeValues(first);
    copyRows(record_.scores, kRows, memory_.scores, kSquareStride, kRows, kRows);
    if (!task_.training) return;
    for (int first = 0; first < columns_; first += kKeys) outGradients(first);
  }

  SEQPAR_DEVICE void loadGates() {
    const int t = ptx::thread();
    if (t >= kRows) return;
    memory_.beta[t] = betaOf(task_, batch_, chunk_, head_, t);
    if constexpr (!kChannel) memory_.decay[t] = decayOf(task_, batch_, chunk_, head_, t);
  }

  SEQPAR_DEVICE void score() {
    const int column = warp_ / 4 * 32;
    float ofKeys[4][4] = {}, ofQueries[4][4] = {};
    if (column <= row_ + kBlock - 1) {
      const InRows keys{memory_.keys, kKeyStride}, queries{memory_.queries, kKeyStride};
      accumulate<T>(ofKeys, keys, row_, keys, column, 0, kKeys);
      accumulate<T>(ofQueries, queries, row_, keys, column, 0, kKeys);
    }
    const auto decayed = [&](int i, int j, float x, const float* norms) {
      return forgetting(memory_.lower[i * kSquare + j], norms[i] * memory_.kNorm[j] * x);
    };
    eachPair(ofQueries, row_, column, [&](int i, int j, float x, float y) {
      putQueries(i, j, decayed(i, j, x, memory_.qNorm), decayed(i, j + 1, y, memory_.qNorm));
    });
    eachPair(ofKeys, row_, column, [&](int i, int j, float x, float y) {
      putKeys(i, j, decayed(i, j, x, memory_.kNorm), decayed(i, j + 1, y, memory_.kNorm));
    });
  }
  SEQPAR_DEVICE void putQueries(int i, int j, float x, float y) {
    const bool used = i < chunk_.rows;
    storePair<T>(memory_.scores + i * kSquareStride + j, used && i >= j ? x : 0, used && i > j ? y : 0);
  }
  SEQPAR_DEVICE void putKeys(int i, int j, float x, float y) {
    const bool used = i < chunk_.rows;
    const float low = used && i > j ? x : 0, high = used && i > j + 1 ? y : 0;
    memory_.lower[i * kSquare + j] = forgetting(memory_.beta[i], low);
    memory_.lower[i * kSquare + j + 1] = forgetting(memory_.beta[i], high);
    if (task_.training) storePair<T>(record_.keyScores + i * kRows + j, low, high);
  }

  /// Decays of channels: products between blocks, and within them.
  SEQPAR_DEVICE void scoreBlocks() {
    const ChannelMemory& m = memory_.channels;
    for (int tile = warp_; tile < kBlocks * kBlocks; tile += kWarps) {
      const int n = tile / kBlocks, row = n * kBlock, column = tile % kBlocks * kBlock;
      if (row == column) continue;
      float ofKeys[2][4] = {}, ofQueries[2][4] = {};
      if (column < row) {
        const InRows near{m.near + nearRow(n) * kKeyStride, kKeyStride};
        multiply<T>(ofKeys, InRows{m.kNear, kKeyStride}, row, near, column, 0, kKeys);
        multiply<T>(ofQueries, InRows{m.qNear, kKeyStride}, row, near, column, 0, kKeys);
      }
      eachPair(ofKeys, row, column, [&](int i, int j, float x, float y) { putKeys(i, j, x, y); });
      eachPair(ofQueries, row, column, [&](int i, int j, float x, float y) { putQueries(i, j, x, y); });
    }
    if (isSteep(m, warp_ % 4)) {
      for (int j = row_ + warp_ / 4 * 8; j < row_ + warp_ / 4 * 8 + 8; j += 2) {
        for (int i = row_ + ptx::thread() % 32; i < j; i += 32) {
          putKeys(i, j, 0, 0);
          putQueries(i, j, 0, 0);
        }
        scoreSteep<T>(task_, batch_, chunk_, head_, memory_.keys, memory_.queries, j,
                      [&](int i, float key, float query, float nextKey, float nextQuery) {
                        putKeys(i, j, key, nextKey);
                        putQueries(i, j, query, nextQuery);
                      });
      }
      return;
    }
    const bool ofKeys = warp_ < 4;
    float c[2][4] = {};
    scoreWithin<T>(c, m, ofKeys ? memory_.keys : memory_.queries, memory_.keys, row_);
    eachPair(c, row_, row_,
             [&](int i, int j, float x, float y) { ofKeys ? putKeys(i, j, x, y) : putQueries(i, j, x, y); });
  }

  /// Blocks of the diagonal of (I + lower)^-1, a column per lane, and zeros above them, which merge() reads. An element
  /// 0 of `lower` forgets.
  SEQPAR_DEVICE void substitute() {
    const int column = ptx::thread(), j = column % kBlock, first = column - j;
    const float* const lower = memory_.lower + first * kSquare + first;
    float x[kBlock];
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      float sum = 0;
      SEQPAR_UNROLL
      for (int k = 0; k < i; ++k) {
        if (k >= j) sum += forgetting(lower[i * kSquare + k], x[k]);
      }
      x[i] = i == j ? 1 : i < j ? 0 : -sum;
      memory_.full[(first + i) * kSquare + column] = x[i];
      if (first / kBlock % 2 != 0) memory_.full[(first - kBlock + i) * kSquare + column] = 0;
    }
  }

  /// Keys from the chunk's start, which replace the queries, queries from there, and keys to the chunk's end.
  SEQPAR_DEVICE void decayRows(int thread, int threads) {
    constexpr int kUnits = kKeys / 8;
    for (int c = thread; c < kKeys; c += threads) {
      record_.total[c] = kChannel ? fromStart(kRows - 1, c) : memory_.in[kRows - 1];
    }
    for (int i = thread; i < kRows * kUnits; i += threads) {
      const int t = i / kUnits, c = i % kUnits * 8, at = t * kKeyStride + c;
      const float ofKey = kChannel ? 1 : memory_.kNorm[t], ofQuery = kChannel ? 1 : memory_.qNorm[t];
      uint32_t keys[4], queries[4], kIn[4], kOut[4];
      ptx::load(keys, memory_.keys + at);
      ptx::load(queries, memory_.queries + at);
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float in = fromStart(t, c + 2 * j), next = kChannel ? fromStart(t, c + 2 * j + 1) : in;
        const float low = ofKey * ptx::lowOf<T>(keys[j]), high = ofKey * ptx::highOf<T>(keys[j]);
        kIn[j] = ptx::pack<T>(forgetting(in, low), forgetting(next, high));
        if constexpr (!kChannel) {
          const float out = memory_.out[t];
          kOut[j] = ptx::pack<T>(forgetting(out, low), forgetting(out, high));
        }
        queries[j] = ptx::pack<T>(forgetting(in, ofQuery * ptx::lowOf<T>(queries[j])),
                                  forgetting(next, ofQuery * ptx::highOf<T>(queries[j])));
      }
      ptx::store(memory_.queries + at, kIn);
      if constexpr (!kChannel) ptx::store(record_.kOut + t * kKeys + c, kOut);
      ptx::store(record_.qIn + t * kKeys + c, queries);
      if (task_.training) ptx::store(record_.kIn + t * kKeys + c, kIn);
    }
  }
  /// The decay of a channel from the chunk's start.
  SEQPAR_DEVICE float fromStart(int t, int c) const {
    if constexpr (kChannel) {
      float run = memory_.channels.run[t * kKeys + c];
      for (int n = 0; n < t / kBlock; ++n) run *= memory_.channels.totals[n * kKeys + c];
      return run;
    } else {
      return memory_.in[t];
    }
  }

  /// Joins `pairs` of neighboring blocks of `size`: -T22 (L21 T11). The sums are above the diagonal of `lower`.
  SEQPAR_DEVICE void merge(int size, int pairs) {
    const int tiles = size / kBlock * (size / kBlock), pair = warp_ / tiles, tile = warp_ % tiles;
    const int first = 2 * size * pair, row = tile / (size / kBlock) * kBlock, column = tile % (size / kBlock) * kBlock;
    const auto block = [&](float* square, int r, int c) {
      return rowsOf(square + (first + r) * kSquare + first + c, kSquare);
    };
    const auto product = [&](const Matrix& a, const Matrix& b, float* to, float sign) {
      if (pair >= pairs) return;
      const Factors factors{a, b, size};
      float c[2][4] = {};
      bool finite = true;
      multiplyTile(c, factors, row, column, true);
      eachPair(c, row, column, [&](int r, int n, float x, float y) {
        to[r * kSquare + n] = sign * x;
        to[r * kSquare + n + 1] = sign * y;
        finite = finite && x - x == 0 && y - y == 0;
      });
      const int lane = ptx::thread() % 32;
      SEQPAR_ROLLED
      for (int i = 0; i < 8 && !finite; ++i) {
        const int r = row + lane / 4 + i / 2 % 2 * 8, n = column + lane % 4 * 2 + i / 4 * 8 + i % 2;
        float& x = to[r * kSquare + n];
        if (!(x - x == 0)) x = sign * delta::element(factors, r, n);
      }
    };
    float* const sums = memory_.lower + first * kSquare + first + size;
    product(block(memory_.lower, size, 0), block(memory_.full, 0, 0), sums, 1);
    ptx::syncthreads();
    product(block(memory_.full, size, size), rowsOf(sums, kSquare), memory_.full + (first + size) * kSquare + first,
            -1);
    ptx::syncthreads();
  }

  SEQPAR_DEVICE void roundInverse() {
    for (int i = ptx::thread(); i < kRows * kRows / 2; i += kThreads) {
      const int r = i / (kRows / 2), c = i % (kRows / 2) * 2;
      const float low = c <= r ? memory_.full[r * kSquare + c] : 0,
                  high = c < r ? memory_.full[r * kSquare + c + 1] : 0;
      storePair<T>(memory_.inverse + r * kSquareStride + c, forgetting(memory_.beta[c], low),
                   forgetting(memory_.beta[c + 1], high));
      if (task_.training) storePair<T>(record_.inverse + r * kRows + c, low, high);
    }
  }

  SEQPAR_DEVICE int widthOf(int first) const { return columns_ - first < kKeys ? columns_ - first : kKeys; }
  SEQPAR_DEVICE void loadValues(int first) {
    loadTensor(memory_.values, kKeyStride, task_.v, batch_, chunk_, head_, first, widthOf(first), task_.dv);
  }
  /// W, with the first columns, and U.
  SEQPAR_DEVICE void writeValues(int first) {
    const int width = widthOf(first), column = warp_ / 4 * 64;
    const AsRows right{memory_.queries, kKeyStride};
    if (kChannel || first != 0) loadValues(first);
    float ofKeys[8][4], ofValues[8][4];
    if (first == 0) multiply<T>(ofKeys, InRows{memory_.inverse, kSquareStride}, row_, right, column, 0, row_ + kBlock);
    ptx::syncthreads();
    if (column < width) {
      multiply<T>(ofValues, InRows{memory_.inverse, kSquareStride}, row_, AsRows{memory_.values, kKeyStride}, column, 0,
                  row_ + kBlock);
    }
    ptx::syncthreads();
    if (first == 0) storeTile(memory_.keys, ofKeys, column);
    if (column < width) storeTile(memory_.values, ofValues, column);
    ptx::syncthreads();
    if (first == 0) copyRows(record_.w, kKeys, memory_.keys, kKeyStride, kRows, kKeys);
    copyRows(record_.written + first, columns_, memory_.values, kKeyStride, kRows, width);
    ptx::syncthreads();
  }
  SEQPAR_DEVICE void storeTile(uint16_t* to, float (&c)[8][4], int column) const {
    eachPair(c, row_, column, [&](int r, int n, float x, float y) { storePair<T>(to + r * kKeyStride + n, x, y); });
  }

  SEQPAR_DEVICE void outGradients(int first) {
    const int width = widthOf(first), column = warp_ / 4 * 64;
    loadTensor(memory_.values, kKeyStride, task_.dOut, batch_, chunk_, head_, first, width, task_.dv);
    ptx::syncthreads();
    if (column < width) {
      float c[8][4];
      multiply<T>(c, AsRows{memory_.scores, kSquareStride}, row_, AsRows{memory_.values, kKeyStride}, column, row_,
                  kRows);
      storeTile(memory_.keys, c, column);
    }
    ptx::syncthreads();
    copyRows(record_.dOut + first, columns_, memory_.values, kKeyStride, kRows, width);
    copyRows(record_.dWritten + first, columns_, memory_.keys, kKeyStride, kRows, width);
    ptx::syncthreads();
  }

  const Task& task_;
  const int columns_, warp_, row_;  ///< row_: the first of the warp's strip
  int head_;
  int64_t batch_;
  Chunk chunk_;
  Record record_;
  PrepareMemory memory_;
};

}  // namespace seqpar::attn::delta::half
