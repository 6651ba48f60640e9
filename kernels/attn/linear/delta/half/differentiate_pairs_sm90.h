// The parts of DifferentiateSm90 with decays of channels that multiply decays token by token: for steep blocks, and for
// chunks with keys or queries that are not finite.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate_sm90.h"

namespace seqpar::attn::delta::half {

/// Channel of column `local` of a half's arrays: 32 of each warpgroup.
SEQPAR_DEVICE int channelOfHalf(int half, int local) {
  constexpr int kHalf = DifferentiateSm90Memory::kHalf;
  return local / kHalf * warpgroup::kPanel + half * kHalf + local % kHalf;
}

/// The decays after the tokens of the warp's block, a steep one, in place of those from its start. A lane has a
/// channel.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::storeSuffixes(int half, int pair) const {
  ptx::syncwarp();
  const int lane = threadAgain() % 32, local = firstColumn(pair) + lane % kBlock, c = channelOfHalf(half, local);
  float suffix = 1;
  SEQPAR_ROLLED
  for (int t = row_ + kBlock; t-- > row_;) {
    if (lane < kBlock) memory_.run[t * Memory::kRunStride + local] = suffix;
    suffix *= anyChannelDecay<>(task_, batch_, chunk_, head_, t, c);
  }
  ptx::syncwarp();
}

/// Gradients by loops over pairs of tokens, to[t][column] of 32 columns. A thread has 8 tokens of one channel.
///     rows:    to_i = sum over j <= i of g_ij x_j a_(j+1) ... a_i
///     columns: to_j = sum over i >= j of (g_ij x_i + h_ij y_i) a_(j+1) ... a_i
/// A g_ij of 0 forgets.
struct PairSum {
  bool ofRows, ofChunk;  ///< ofChunk: of all pairs of the chunk; otherwise of those of a steep block
  SquareRows g;
  KeyPanels<kRows> x;
  SquareRows h;
  KeyPanels<kRows> y;
  Floats to;
};
template <class T>
SEQPAR_DEVICE_NOINLINE void sumPairs(const PairSum sum, const Ints steep, const Task& task, int64_t batch,
                                     const Chunk chunk, int head, int half, int pair) {
  constexpr int kColumns = 2 * kBlock, kTokens = 8;
  const int column = threadAgain() % kColumns, start = threadAgain() / kColumns * kTokens, block = start / kBlock,
            c = channelOfHalf(half, column / kBlock * DifferentiateSm90Memory::kHalf + pair * kBlock + column % kBlock);
  if (!sum.ofChunk && steep[block] == 0) return;
  const int first = block * kBlock, end = first + kBlock;
  const auto term = [&](const SquareRows& g, int i, int j, const KeyPanels<kRows>& x, int t) {
    return forgetting(ptx::lowOf<T>(*g.at(i, j)), ptx::lowOf<T>(*x.at(t, c)));
  };
  SEQPAR_ROLLED
  for (int t = start; t < start + kTokens; ++t) {
    float run = 1, total = 0;
    if (sum.ofRows) {
      SEQPAR_ROLLED
      for (int j = t; j >= (sum.ofChunk ? 0 : first); --j) {
        total += forgetting(run, term(sum.g, t, j, sum.x, j));
        run *= channelDecay(task, batch, chunk, head, j, c);
      }
    } else {
      SEQPAR_ROLLED
      for (int i = t; i < (sum.ofChunk ? kRows : end); ++i) {
        if (i > t) run *= channelDecay(task, batch, chunk, head, i, c);
        total += forgetting(run, term(sum.g, i, t, sum.x, i) + term(sum.h, i, t, sum.y, i));
      }
    }
    sum.to[t * kColumns + column] = total;
  }
}

template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::addPairs(int half, int pair) {
  const Floats sums = memory_.sums;
  const auto add = [&](PairTiles& to, const PairSum& sum) {
    ptx::syncthreads();
    sumPairs<T>(sum, memory_.steep, task_, batch_, chunk_, head_, half, pair);
    ptx::syncthreads();
    if (finite_ && memory_.steep[row_ / kBlock] == 0) return;
    eachOfPair(0, [&](int t, int local, int n, int e) {
      const int at = t * 2 * kBlock + local / Memory::kHalf * kBlock + local % kBlock;
      to[n][e] += sums[at];
      to[n][e + 1] += sums[at + 1];
    });
  };
  add(pairOf(dq_), {true, !finite_, ofScores(), keys(), ofScores(), keys(), sums});
  add(pairOf(dRow_), {true, !finite_, ofKeys(), keys(), ofKeys(), keys(), sums});
  add(pairOf(dColumn_), {false, !finite_, ofScores(), queries(), ofKeys(), keys(), sums});
}

}  // namespace seqpar::attn::delta::half
