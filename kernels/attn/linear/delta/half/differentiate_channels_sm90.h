// The parts of DifferentiateSm90 for decays of channels, for one half of the channels at a time.
//
// With B the block of 16 tokens of a row: gradients of rows are decays from the start of B, times the sum of what the
// states and the tokens of each earlier block contribute, decayed block by block; those of columns are decays to the
// end of B, times that of later blocks. Pairs of tokens of B have quotients of decays, in TF32: gradients of decays are
// differences of these sums. Decays after a token are quotients of decays from the block's start. Steep blocks, with
// inexact quotients, have loops over pairs of tokens (differentiate_pairs_sm90.h), and so has a chunk with a key or
// query that is not finite.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate_pairs_sm90.h"

namespace seqpar::attn::delta::half {

template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::throughChannels() {
  SEQPAR_ROLLED
  for (int half = 0; half < 2; ++half) {
    ptx::syncthreads();  // values, or the other half's arrays, are read
    decayChannels(half);
    ptx::syncthreads();
    const bool steep = memory_.steep[row_ / kBlock] != 0;
    bool any = !finite_;
    SEQPAR_UNROLL
    for (int n = 0; n < kBlocks; ++n) any = any || memory_.steep[n] != 0;
    SEQPAR_ROLLED
    for (int pair = 0; pair < 2; ++pair) {
      decayBefore(pair);
      if (finite_ && !steep) withinRows(half, pair);
      decayAfter(half, pair, steep);
      if (any) addPairs(half, pair);
      storeTerms(half, pair);
      rotate(dq_);
      rotate(dRow_);
      rotate(dColumn_);
    }
    ptx::syncthreads();
    if (task_.dGates.data != nullptr) ofChannelGates(half);
  }
  ptx::syncthreads();
}

/// Terms of gradients of decays, and the sum of the gradients of keys.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::storeTerms(int half, int pair) {
  PairTiles &dq = pairOf(dq_), &dRow = pairOf(dRow_), &dColumn = pairOf(dColumn_);
  ptx::syncwarp();  // the warp has read these elements of `run`
  eachOfPair(pair, [&](int t, int local, int n, int e) {
    const int c = channelOfHalf(half, local);
    const uint32_t query = queries().pair(t, c), key = keys().pair(t, c);
    ptx::storePair(memory_.run + (t * Memory::kRunStride + local),
                   ptx::lowOf<T>(query) * dq[n][e] + ptx::lowOf<T>(key) * (dRow[n][e] - dColumn[n][e]),
                   ptx::highOf<T>(query) * dq[n][e + 1] + ptx::highOf<T>(key) * (dRow[n][e + 1] - dColumn[n][e + 1]));
    dRow[n][e] += dColumn[n][e];
    dRow[n][e + 1] += dColumn[n][e + 1];
  });
}

/// Decays of the half's channels and decayed rows. A warp has 8 tokens, a lane a pair of channels.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::decayChannels(int half) {
  constexpr int kTokens = kRows / Memory::kParts, kLoads = kTokens / 2;
  const int local = threadAgain() % 32 * 2, c = channelOfHalf(half, local), first = warp_ * kTokens;
  float* const decays = memory_.run + (first * Memory::kRunStride + local);  // few registers: read again
  float product[2] = {1, 1}, other[2];
  int zeros[2] = {};
  SEQPAR_ROLLED
  for (int start = 0; start < kTokens; start += kLoads) {
    float of[kLoads][2];
    loadDecays(of, task_, batch_, chunk_, head_, first + start, c);
    SEQPAR_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      ptx::storePair(decays + (start + i) * Memory::kRunStride, of[i][0], of[i][1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        product[e] *= of[i][e];
        zeros[e] |= of[i][e] == 0 ? 1 << (start + i) : 0;
      }
    }
  }
  const int at = warp_ * Memory::kWidth + local;
  ptx::storePair(memory_.parts + at, product[0], product[1]);
  memory_.zeros[at] = zeros[0];
  memory_.zeros[at + 1] = zeros[1];
  ptx::syncthreads();
  ptx::loadPair(memory_.parts + (at ^ Memory::kWidth), other[0], other[1]);
  const bool isSecond = warp_ % 2 != 0;
  if (!isSecond) storeTotals(local, product[0] * other[0], product[1] * other[1]);
  const SquareRows kNear{memory_.kNear}, qNear{memory_.qNear}, kEnd{memory_.kEnd};
  const auto put = [&](const SquareRows& to, int t, const float(&decay)[2], uint32_t x) {
    to.pair(t, local) = ptx::pack<T>(forgetting(decay[0], ptx::lowOf<T>(x)), forgetting(decay[1], ptx::highOf<T>(x)));
  };
  const auto multiply = [&](float(&run)[2], int i) {
    float decay[2];
    ptx::loadPair(decays + i * Memory::kRunStride, decay[0], decay[1]);
    run[0] *= decay[0];
    run[1] *= decay[1];
  };
  float suffix[2] = {isSecond ? 1 : other[0], isSecond ? 1 : other[1]};
  SEQPAR_ROLLED
  for (int i = kTokens; i-- > 0;) {
    put(kEnd, first + i, suffix, keys().pair(first + i, c));
    multiply(suffix, i);
  }
  float run[2] = {isSecond ? other[0] : 1, isSecond ? other[1] : 1};
  SEQPAR_ROLLED
  for (int i = 0; i < kTokens; ++i) {
    multiply(run, i);
    ptx::storePair(decays + i * Memory::kRunStride, run[0], run[1]);
    put(kNear, first + i, run, keys().pair(first + i, c));
    put(qNear, first + i, run, queries().pair(first + i, c));
  }
}

/// Products of the decays of the warp's block, and of later ones; whether the block is steep.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::storeTotals(int local, float low, float high) const {
  const int block = warp_ / 2, at = block * Memory::kWidth + local;
  float after[2] = {1, 1};
  SEQPAR_ROLLED
  for (int n = 2 * block + 2; n < Memory::kParts; ++n) {
    float part[2];
    ptx::loadPair(memory_.parts + (n * Memory::kWidth + local), part[0], part[1]);
    after[0] *= part[0];
    after[1] *= part[1];
  }
  ptx::storePair(memory_.totals + at, low, high);
  ptx::storePair(memory_.after + at, after[0], after[1]);
  const bool mild = ptx::voteAll(low >= kSteep && high >= kSteep);
  if (local == 0) memory_.steep[block] = mild ? 0 : 1;
}

/// c = totals[block] c for the warp's channels of a half.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::decayBlock(PairTiles& c, int pair, int block) const {
  const int first = ptx::AccumulatorLayout{threadAgain() % 32}.column(firstColumn(pair));
  SEQPAR_UNROLL
  for (int n = 0; n < 2; ++n) {
    float total[2];
    ptx::loadPair(memory_.totals + (block * Memory::kWidth + first + 8 * n), total[0], total[1]);
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) c[n][e] = forgetting(total[e % 2], c[n][e]);
  }
}

/// Sums of dq and dRow up to the start of the warp's block.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::decayBefore(int pair) {
  PairTiles &dq = pairOf(dq_), &dRow = pairOf(dRow_);
  const int t = ptx::AccumulatorLayout{threadAgain() % 32}.row(row_);
  const float betas[2] = {-memory_.beta[t], -memory_.beta[t + 8]};
  SEQPAR_UNROLL
  for (int n = 0; n < 2; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) dRow[n][e] *= betas[e / 2];
  }
  const SquareRows kEnd{memory_.kEnd};
  SEQPAR_ROLLED
  for (int k = 0; k < row_; k += kBlock) {
    decayBlock(dq, pair, k / kBlock);
    decayBlock(dRow, pair, k / kBlock);
    if (!finite_) continue;
    uint32_t x[4], y[4];
    loadLeft<true>(x, ofScores(), row_, k);
    loadLeft<true>(y, ofKeys(), row_, k);
    accumulateBoth<T, false>(dq, x, dRow, y, kEnd, firstColumn(pair), k);
  }
}

template <class T, bool kTwo, bool kShared, bool kChannel>
template <class Each>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::eachSuffix(int pair, bool steep,
                                                                             const Each& each) const {
  eachOfPair(pair, [&](int t, int local, int n, int e) {
    float suffix[2], total[2];
    ptx::loadPair(memory_.run + (t * Memory::kRunStride + local), suffix[0], suffix[1]);
    ptx::loadPair(memory_.totals + (row_ / kBlock * Memory::kWidth + local), total[0], total[1]);
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) suffix[i] = steep ? suffix[i] : total[i] * ptx::rcpApprox(suffix[i]);
    each(t, local, n, e, suffix);
  });
}

/// The block's own pairs of dq and dRow, divided by the decays from its start.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::withinRows(int half, int pair) {
  PairTiles &dq = pairOf(dq_), &dRow = pairOf(dRow_);
  const ptx::Tf32Layout operand{threadAgain() % 32};
  SEQPAR_UNROLL
  for (int k = row_; k < row_ + kBlock; k += 8) {
    uint32_t x[4], y[4], b[2];
    loadTf32<true>(x, ofScores(), k);
    loadTf32<true>(y, ofKeys(), k);
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int local = operand.column(firstColumn(pair) + 8 * n), c = channelOfHalf(half, local);
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int t = operand.termOfB(k, i);
        b[i] = ptx::roundToTf32(ptx::lowOf<T>(*keys().at(t, c)) *
                                ptx::rcpApprox(memory_.run[t * Memory::kRunStride + local]));
      }
      ptx::mmaM16N8K8Tf32(dq[n], x, b[0], b[1]);
      ptx::mmaM16N8K8Tf32(dRow[n], y, b[0], b[1]);
    }
  }
}

/// Decays dq and dRow from the start of the block; then the sums of dColumn.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::decayAfter(int half, int pair, bool steep) {
  PairTiles &dq = pairOf(dq_), &dRow = pairOf(dRow_), &dColumn = pairOf(dColumn_);
  eachOfPair(pair, [&](int t, int local, int n, int e) {
    float run[2];
    ptx::loadPair(memory_.run + (t * Memory::kRunStride + local), run[0], run[1]);
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      dq[n][e + i] = forgetting(run[i], dq[n][e + i]);
      dRow[n][e + i] = forgetting(run[i], dRow[n][e + i]);
    }
  });
  if (steep) storeSuffixes(half, pair);
  const int block = row_ / kBlock;
  float ends[2][2] = {};
  eachSuffix(pair, steep, [&](int t, int local, int n, int e, const float(&suffix)[2]) {
    const uint32_t key = keys().pair(t, channelOfHalf(half, local));
    float after[2];
    ptx::loadPair(memory_.after + (block * Memory::kWidth + local), after[0], after[1]);
    ends[n][0] += forgetting(suffix[0] * after[0], ptx::lowOf<T>(key) * dColumn[n][e]);
    ends[n][1] += forgetting(suffix[1] * after[1], ptx::highOf<T>(key) * dColumn[n][e + 1]);
  });
  const int lane = threadAgain() % 32;
  SEQPAR_UNROLL
  for (int n = 0; n < 2; ++n) {
    SEQPAR_UNROLL
    for (auto& sum : ends[n]) {
      SEQPAR_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) sum += ptx::shflXor(sum, mask);
    }
    if (lane < 4) {
      ptx::storePair(
          memory_.blockEnds + (block * Memory::kWidth + ptx::AccumulatorLayout{lane}.column(firstColumn(pair)) + 8 * n),
          ends[n][0], ends[n][1]);
    }
  }
  SEQPAR_ROLLED
  for (int k = kRows - kBlock; k > row_; k -= kBlock) {
    decayBlock(dColumn, pair, k / kBlock);
    if (!finite_) continue;
    uint32_t x[4];
    loadLeft<false>(x, ofScores(), row_, k);
    accumulate<T, false>(dColumn, x, SquareRows{memory_.qNear}, firstColumn(pair), k);
    loadLeft<false>(x, ofKeys(), row_, k);
    accumulate<T, false>(dColumn, x, SquareRows{memory_.kNear}, firstColumn(pair), k);
  }
  eachSuffix(pair, steep, [&](int, int, int n, int e, const float(&suffix)[2]) {
    dColumn[n][e] = forgetting(suffix[0], dColumn[n][e]);
    dColumn[n][e + 1] = forgetting(suffix[1], dColumn[n][e + 1]);
  });
  if (finite_ && !steep) withinColumns(half, pair);
}

template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::withinColumns(int half, int pair) {
  PairTiles& dColumn = pairOf(dColumn_);
  const ptx::Tf32Layout operand{threadAgain() % 32};
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  uint32_t x[2][4], y[2][4];
  SEQPAR_UNROLL
  for (int s = 0; s < 2; ++s) {
    loadTf32<false>(x[s], ofScores(), row_ + 8 * s);
    loadTf32<false>(y[s], ofKeys(), row_ + 8 * s);
  }
  SEQPAR_UNROLL
  for (int n = 0; n < 2; ++n) {
    const int local = operand.column(firstColumn(pair) + 8 * n), c = channelOfHalf(half, local);
    float sums[4] = {};
    SEQPAR_UNROLL
    for (int s = 0; s < 2; ++s) {
      uint32_t ofQueries[2], ofKeyRows[2];
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int t = operand.termOfB(row_ + 8 * s, i);
        const float run = memory_.run[t * Memory::kRunStride + local];
        ofQueries[i] = ptx::roundToTf32(ptx::lowOf<T>(*queries().at(t, c)) * run);
        ofKeyRows[i] = ptx::roundToTf32(ptx::lowOf<T>(*keys().at(t, c)) * run);
      }
      ptx::mmaM16N8K8Tf32(sums, x[s], ofQueries[0], ofQueries[1]);
      ptx::mmaM16N8K8Tf32(sums, y[s], ofKeyRows[0], ofKeyRows[1]);
    }
    SEQPAR_UNROLL
    for (int e = 0; e < 4; e += 2) {
      float run[2];
      ptx::loadPair(memory_.run + (layout.row(row_, e) * Memory::kRunStride + layout.column(firstColumn(pair)) + 8 * n),
                    run[0], run[1]);
      dColumn[n][e] += ptx::rcpApprox(run[0]) * sums[e];
      dColumn[n][e + 1] += ptx::rcpApprox(run[1]) * sums[e + 1];
    }
  }
}

/// A thread has a block of one channel.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::ofChannelGates(int half) const {
  constexpr int kWidth = Memory::kWidth;
  const int local = threadAgain() % kWidth, c = channelOfHalf(half, local), block = threadAgain() / kWidth,
            first = block * kBlock;
  const auto zerosOf = [&](int n) {
    return memory_.zeros[2 * n * kWidth + local] | memory_.zeros[(2 * n + 1) * kWidth + local] << 8;
  };
  const int zeros = zerosOf(block);
  float run = 0;
  SEQPAR_ROLLED
  for (int i = kBlock; i-- > 0;) {
    float& term = memory_.run[(first + i) * Memory::kRunStride + local];
    run = (zeros >> i & 1) != 0 ? 0 : run + term;
    term = run;
  }
  memory_.blocks[block * kWidth + local] = run;
  ptx::syncthreads();
  if (c >= task_.dk) return;
  float after = 0, total = 1;
  SEQPAR_UNROLL
  for (int n = 0; n < kAll / 32; ++n) after += memory_.boundaries[n * kKeys + c];
  SEQPAR_UNROLL
  for (int n = 0; n < kBlocks; ++n) total *= memory_.totals[n * kWidth + local];
  after = forgetting(total, after);
  SEQPAR_UNROLL
  for (int n = 0; n < kBlocks; ++n) after += memory_.blockEnds[n * kWidth + local];
  SEQPAR_ROLLED
  for (int n = kBlocks - 1; n > block; --n) {
    after = memory_.blocks[n * kWidth + local] + (zerosOf(n) != 0 ? 0 : after);
  }
  const int64_t to = rowOf(task_.dGates, batch_, chunk_.first + first, head_) + c;
  SEQPAR_ROLLED
  for (int i = 0; i < kBlock; ++i) {
    if (first + i >= chunk_.rows) break;
    storeNumber(task_.dGates.data, task_.gateType, to + i * task_.dGates.token,
                memory_.run[(first + i) * Memory::kRunStride + local] + (zeros >> i != 0 ? 0 : after));
  }
}

}  // namespace seqpar::attn::delta::half
