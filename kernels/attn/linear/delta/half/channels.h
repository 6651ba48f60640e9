// Decays of channels in a chunk (Kimi Delta Attention, arXiv 2510.26692), as products of decays from the starts and to
// the ends of blocks of 16 tokens: no factor is above 1. Between blocks scores are products of decayed rows; within a
// block a column is divided by its decay from the block's start, unless that decay is so small that a pair of tokens
// needs the product of the decays between them ("steep").
#pragma once

#include "kernels/attn/linear/delta/half/tile.h"

namespace seqpar::attn::delta::half {

/// Decay of token t of the chunk.
SEQPAR_DEVICE float channelDecay(const Task& task, int64_t batch, const Chunk& chunk, int head, int t, int c) {
  if (t >= chunk.rows || c >= task.dk) return 1;
  return expf(loadNumber(task.gates.data, task.gateType, rowOf(task.gates, batch, chunk.first + t, head) + c));
}

/// Arrays of ChannelMemory, from keys and queries in shared memory, and kOut in device memory. All threads call it: two
/// blocks of one channel each; then a barrier.
template <class T>
SEQPAR_DEVICE void decayChannels(const ChannelMemory& m, const Task& task, int64_t batch, const Chunk& chunk, int head,
                                 const uint16_t* keys, const uint16_t* queries, uint16_t* kOut) {
  const int c = ptx::thread() % kKeys, first = ptx::thread() / kKeys * 2;
  float decays[2][kBlock];
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) {
    float run = 1;
    SEQPAR_UNROLL
    for (int t = 0; t < kBlock; ++t) {
      decays[h][t] = channelDecay(task, batch, chunk, head, (first + h) * kBlock + t, c);
      run *= decays[h][t];
    }
    m.totals[(first + h) * kKeys + c] = run;
    const uint32_t steep = ptx::reduxMax(run < 0x1p-100F ? 1U : 0U);
    if (ptx::thread() % 32 == 0) m.steep[(first + h) * 4 + c / 32] = static_cast<int>(steep);
  }
  ptx::syncthreads();
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int block = first + h;
    float toEnd = 1, toStart[kBlocks];
    for (int n = block + 1; n < kBlocks; ++n) {
      toStart[n] = toEnd;
      toEnd *= m.totals[n * kKeys + c];
    }
    float run = 1;
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      const int t = block * kBlock + i, at = t * kKeyStride + c;
      run *= decays[h][i];
      m.run[t * kKeys + c] = run;
      m.kNear[at] = rounded<T>(forgetting(run, toFloat<T>(keys[at])));
      m.qNear[at] = rounded<T>(forgetting(run, toFloat<T>(queries[at])));
    }
    run = 1;
    SEQPAR_UNROLL
    for (int i = kBlock; i-- > 0;) {
      const int t = block * kBlock + i;
      const float key = toFloat<T>(keys[t * kKeyStride + c]);
      if (m.suffix != nullptr) m.suffix[t * kKeys + c] = run;
      if (kOut != nullptr) kOut[t * kKeys + c] = rounded<T>(forgetting(run * toEnd, key));
      for (int n = block + 1; n < kBlocks; ++n) {
        m.near[(nearRow(n) + t) * kKeyStride + c] = rounded<T>(forgetting(run * toStart[n], key));
      }
      run *= decays[h][i];
    }
  }
  ptx::syncthreads();
}

SEQPAR_DEVICE bool isSteep(const ChannelMemory& m, int block) {
  const int* const flags = m.steep + 4 * block;
  return flags[0] + flags[1] + flags[2] + flags[3] != 0;
}

/// Operands of products within a block that is not steep.
struct Within {
  const ChannelMemory& m;
  /// Decayed from the block's start.
  template <class T>
  SEQPAR_DEVICE uint32_t row(const uint16_t* rows, int t, int c) const {
    return ptx::roundToTf32(toFloat<T>(rows[t * kKeyStride + c]) * m.run[t * kKeys + c]);
  }
  /// The inverse.
  template <class T>
  SEQPAR_DEVICE uint32_t column(const uint16_t* rows, int t, int c) const {
    return ptx::roundToTf32(toFloat<T>(rows[t * kKeyStride + c]) * inverse(t, c));
  }
  SEQPAR_DEVICE float inverse(int t, int c) const { return ptx::rcpApprox(m.run[t * kKeys + c]); }
};

/// c = scores of rows with the keys of a block, by a warp; elements above the diagonal are undefined.
template <class T>
SEQPAR_DEVICE void scoreWithin(float (&c)[2][4], const ChannelMemory& m, const uint16_t* rows, const uint16_t* keys,
                               int first) {
  const int lane = ptx::thread() % 32, g = first + lane / 4, p = lane % 4;
  const Within within{m};
  SEQPAR_ROLLED
  for (int k = 0; k < kKeys; k += 8) {
    const uint32_t a[4] = {within.row<T>(rows, g, k + p), within.row<T>(rows, g + 8, k + p),
                           within.row<T>(rows, g, k + p + 4), within.row<T>(rows, g + 8, k + p + 4)};
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      ptx::mmaM16N8K8Tf32(c[n], a, within.column<T>(keys, g + 8 * n, k + p),
                          within.column<T>(keys, g + 8 * n, k + p + 4));
    }
  }
}
/// Scores of the pair of columns j, j + 1 (j even) in a steep block, by a warp: calls put(i, x0, y0, x1, y1) with the
/// scores of the key and the query of token i on the first lane.
template <class T, class Put>
SEQPAR_DEVICE void scoreSteep(const Task& task, int64_t batch, const Chunk& chunk, int head, const uint16_t* keys,
                              const uint16_t* queries, int j, const Put& put) {
  const int lane = ptx::thread() % 32;
  float run[kKeys / 32][2];
  for (auto& pair : run) pair[0] = pair[1] = 1;
  SEQPAR_ROLLED
  for (int i = j; i < (j / kBlock + 1) * kBlock; ++i) {
    float sums[4] = {};
    SEQPAR_UNROLL
    for (int m = 0; m < kKeys / 32; ++m) {
      const int c = lane + 32 * m;
      const float decay = i > j ? channelDecay(task, batch, chunk, head, i, c) : 1;
      run[m][0] *= decay;
      if (i > j + 1) run[m][1] *= decay;
      const float key = toFloat<T>(keys[i * kKeyStride + c]), query = toFloat<T>(queries[i * kKeyStride + c]);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        const float other = toFloat<T>(keys[(j + n) * kKeyStride + c]);
        sums[2 * n] += forgetting(run[m][n], key * other);
        sums[2 * n + 1] += forgetting(run[m][n], query * other);
      }
    }
    for (auto& sum : sums) sum = sumOfWarp(sum);
    if (lane == 0) put(i, sums[0], sums[1], sums[2], sums[3]);
  }
}

/// Gradients of rows or columns in steep blocks, to[t][c]; zeros elsewhere. Two blocks of one channel per thread.
///     rows:    to_i = sum over j <= i of g_ij x_j a_(j+1) ... a_i
///     columns: to_j = sum over i >= j of (g_ij x_i + h_ij y_i) a_(j+1) ... a_i
struct SteepSum {
  bool ofRows;
  const uint16_t *g, *x, *h, *y;
  float* to;  ///< [kRows][kKeys]
};
template <class T>
SEQPAR_DEVICE_NOINLINE void sumSteep(const SteepSum sum, const ChannelMemory m, const Task& task, int64_t batch,
                                     const Chunk chunk, int head) {
  const int c = ptx::thread() % kKeys;
  SEQPAR_ROLLED
  for (int block = ptx::thread() / kKeys; block < kBlocks; block += kThreads / kKeys) {
    if (!isSteep(m, block)) continue;
    const int first = block * kBlock, end = first + kBlock;
    SEQPAR_ROLLED
    for (int t = first; t < end; ++t) {
      float run = 1, total = 0;
      if (sum.ofRows) {
        SEQPAR_ROLLED
        for (int j = t; j >= first; --j) {
          total += forgetting(run, toFloat<T>(sum.g[t * kSquareStride + j]) * toFloat<T>(sum.x[j * kKeyStride + c]));
          run *= channelDecay(task, batch, chunk, head, j, c);
        }
      } else {
        SEQPAR_ROLLED
        for (int i = t; i < end; ++i) {
          if (i > t) run *= channelDecay(task, batch, chunk, head, i, c);
          total +=
              forgetting(run, toFloat<T>(sum.g[i * kSquareStride + t]) * toFloat<T>(sum.x[i * kKeyStride + c]) +
                                  toFloat<T>(sum.h[i * kSquareStride + t]) * toFloat<T>(sum.y[i * kKeyStride + c]));
        }
      }
      sum.to[t * kKeys + c] = total;
    }
  }
}

}  // namespace seqpar::attn::delta::half
