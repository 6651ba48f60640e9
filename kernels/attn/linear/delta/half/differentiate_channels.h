// The parts of Differentiate for decays of channels.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate_decays.h"

namespace seqpar::attn::delta::half {

/// With B the block of 16 tokens of a row: rows of dq and dRow are decays from the start of B, times the sum of what
/// earlier blocks' states and tokens contribute; those of dColumn are decays to the end of B, times that of later ones.
/// Pairs of tokens of B have quotients of decays.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughChannels() {
  HalfBlockDecays decays;
  const bool started = startDecays(decays.of, task_, batch_, chunk_, head_, decays.first, decays.channel);
  ptx::syncthreads();  // the stages are read
  finishDecays(decays.of, started, task_, batch_, chunk_, head_, decays.first, decays.channel);
  decays.storeTotals(memory_.totals, memory_.steep, memory_.zeros);
  shareMagnitudes();
  ptx::syncthreads();
  const Scales scales = findScales();
  if (kMayBeMild && scales.mild) {
    throughMildChannels(decays, scales);
  } else {
    throughAnyChannels(decays);
  }
  const int t = threadAgain();
  if (t < kRows) ofBeta(t, memory_.beta[t] * rowSum(memory_.terms, t) + rowSum(memory_.ends, t));
}
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughAnyChannels(HalfBlockDecays& decays) {
  decayChannels<false>(decays, 1);
  storeChannelScores<T>(1);
  ptx::syncthreads();
  decayBefore();
  decayAfter();
  if (!isSteep(memory_.steep, row_ / kBlock)) throughBlock();
  throughSteepBlocks();
  ptx::syncthreads();
  storeTerms([](int, int, int, int) {});
  ptx::syncthreads();
}

/// dq and dRow = decays from the block's start times (the decays before the block times them, the latter by -beta, plus
/// scores times earlier keys).
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::decayBefore() {
  const int block = row_ / kBlock;
  const KeyRows near{memory_.near + nearRow(block) * KeyRows::kRowBytes};
  float ofQueries[4][4], ofRows[4][4];
  clear(ofQueries);
  clear(ofRows);
  SEQPAR_UNROLL
  for (int k = 0; k + kBlock < kRows; k += kBlock) {
    if (k >= row_) break;
    uint32_t x[4], y[4];
    loadLeft<true>(x, ofScores(), row_, k);
    loadLeft<true>(y, ofKeys(), row_, k);
    accumulateBoth<T, false>(ofQueries, x, ofRows, y, near, channel_, k);
  }
  const auto check = [&](float(&part)[4][4], const SquareRows& scores) {
    if (allFinite(part)) return;
    recompute(part, row_, channel_,
              [&](int t, int n) { return sumForgetting<T, true, false>(scores, t, near, n, 0, row_); });
  };
  check(ofQueries, ofScores());
  check(ofRows, ofKeys());
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const int t = layout.row(row_), first = layout.column(channel_);
  const float betas[2] = {-memory_.beta[t], -memory_.beta[t + 8]};
  SEQPAR_UNROLL
  for (int n = 0; n < 4; ++n) {
    const int c = first + 8 * n;
    float before[2], run[2];
    ptx::loadPair(memory_.before + block * kKeys + c, before[0], before[1]);
    const float ofStates[2] = {task_.scale * before[0], task_.scale * before[1]};
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      ptx::loadPair(memory_.run + (t + 8 * h) * kRunStride + c, run[0], run[1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float &dq = dq_[n][2 * h + e], &dRow = dRow_[n][2 * h + e];
        dq = forgetting(run[e], forgetting(ofStates[e], dq) + ofQueries[n][2 * h + e]);
        dRow = forgetting(run[e], forgetting(before[e], betas[h] * dRow) + ofRows[n][2 * h + e]);
      }
    }
  }
}

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::decayAfter() {
  const int block = row_ / kBlock;
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const int t = layout.row(row_), first = layout.column(channel_);
  float ends[4][2] = {}, after[2], suffix[2], part[4][4];
  SEQPAR_UNROLL
  for (int n = 0; n < 4; ++n) {
    const int c = first + 8 * n;
    ptx::loadPair(memory_.after + block * kKeys + c, after[0], after[1]);
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      ptx::loadPair(memory_.suffix + (t + 8 * h) * kRunStride + c, suffix[0], suffix[1]);
      const uint32_t key = keys().pair(t + 8 * h, c);
      ends[n][0] += forgetting(suffix[0] * after[0], ptx::lowOf<T>(key) * dColumn_[n][2 * h]);
      ends[n][1] += forgetting(suffix[1] * after[1], ptx::highOf<T>(key) * dColumn_[n][2 * h + 1]);
    }
  }
  sumEnds(ends);
  const KeyRows qNear{memory_.qNear}, kNear{memory_.kNear};
  const auto products = [&](int k) {
    clear(part);
    uint32_t x[4];
    loadLeft<false>(x, ofScores(), row_, k);
    accumulate<T, false>(part, x, qNear, channel_, k);
    loadLeft<false>(x, ofKeys(), row_, k);
    accumulate<T, false>(part, x, kNear, channel_, k);
    if (!allFinite(part)) {
      recompute(part, row_, channel_, [&](int token, int n) {
        return sumForgetting<T, false, false>(ofScores(), token, qNear, n, k, k + kBlock) +
               sumForgetting<T, false, false>(ofKeys(), token, kNear, n, k, k + kBlock);
      });
    }
  };
  SEQPAR_ROLLED
  for (int later = kBlocks - 1; later > block; --later) {
    products(later * kBlock);
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      float total[2];
      ptx::loadPair(memory_.totals + later * kKeys + first + 8 * n, total[0], total[1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        dColumn_[n][e] = forgetting(total[e % 2], dColumn_[n][e]) + part[n][e];
      }
    }
  }
  eachChannelPair([&](int row, int c, int n, int e) {
    float low, high;
    ptx::loadPair(memory_.suffix + row * kRunStride + c, low, high);
    dColumn_[n][e] = forgetting(low, dColumn_[n][e]);
    dColumn_[n][e + 1] = forgetting(high, dColumn_[n][e + 1]);
  });
}

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::sumEnds(float (&ends)[4][2]) {
  const int lane = threadAgain() % 32, first = ptx::AccumulatorLayout{lane}.column(channel_);
  SEQPAR_UNROLL
  for (int n = 0; n < 4; ++n) {
    SEQPAR_UNROLL
    for (auto& sum : ends[n]) {
      SEQPAR_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) sum += ptx::shflXor(sum, mask);
    }
    if (lane < 4) ptx::storePair(memory_.blockEnds + row_ / kBlock * kKeys + first + 8 * n, ends[n][0], ends[n][1]);
  }
}

/// Pairs of tokens of a block that is not steep, in TF32: gradients of decays are differences of these sums.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughBlock() {
  const Floats run = memory_.run;
  const int lane = threadAgain() % 32;
  const ptx::Tf32Layout operand{lane};
  const auto number = [](const auto& rows, int t, int c) { return ptx::lowOf<T>(*rows.at(t, c)); };
  const auto load = [&](uint32_t(&x)[4], const SquareRows& a, bool inRows, int k) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = operand.row(row_, i), term = operand.term(k, i);
      x[i] = asBits(ptx::lowOf<T>(*(inRows ? a.at(row, term) : a.at(term, row))));
    }
  };
  const auto eachDecay = [&](const auto& each) {
    eachChannelPair([&](int t, int c, int n, int e) {
      float low, high;
      ptx::loadPair(run + t * kRunStride + c, low, high);
      each(n, e, low);
      each(n, e + 1, high);
    });
  };
  float sums[4][4], others[4][4];
  clear(sums);
  clear(others);
  SEQPAR_UNROLL
  for (int k = row_; k < row_ + kBlock; k += 8) {
    uint32_t x[4], y[4], b[2];
    load(x, ofScores(), true, k);
    load(y, ofKeys(), true, k);
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int t = operand.termOfB(k, i), c = operand.column(channel_ + 8 * n);
        b[i] = ptx::roundToTf32(number(keys(), t, c) * ptx::rcpApprox(run[t * kRunStride + c]));
      }
      ptx::mmaM16N8K8Tf32(sums[n], x, b[0], b[1]);
      ptx::mmaM16N8K8Tf32(others[n], y, b[0], b[1]);
    }
  }
  eachDecay([&](int n, int e, float decay) {
    dq_[n][e] += decay * sums[n][e];
    dRow_[n][e] += decay * others[n][e];
  });
  clear(sums);
  SEQPAR_UNROLL
  for (int k = row_; k < row_ + kBlock; k += 8) {
    uint32_t x[4], y[4], b[2], c[2];
    load(x, ofScores(), false, k);
    load(y, ofKeys(), false, k);
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int t = operand.termOfB(k, i), column = operand.column(channel_ + 8 * n);
        const float decay = run[t * kRunStride + column];
        b[i] = ptx::roundToTf32(number(queries(), t, column) * decay);
        c[i] = ptx::roundToTf32(number(keys(), t, column) * decay);
      }
      ptx::mmaM16N8K8Tf32(sums[n], x, b[0], b[1]);
      ptx::mmaM16N8K8Tf32(sums[n], y, c[0], c[1]);
    }
  }
  eachDecay([&](int n, int e, float decay) { dColumn_[n][e] += ptx::rcpApprox(decay) * sums[n][e]; });
}

/// Gradients of rows or columns in steep blocks, to[t][c]. A thread has a block of one channel.
///     rows:    to_i = sum over j <= i of g_ij x_j a_(j+1) ... a_i
///     columns: to_j = sum over i >= j of (g_ij x_i + h_ij y_i) a_(j+1) ... a_i
struct SteepSum {
  bool ofRows;
  SquareRows g;
  KeyRows x;
  SquareRows h;
  KeyRows y;
  Floats to;  ///< [kRows][kKeys]
};
template <class T>
SEQPAR_DEVICE_NOINLINE void sumSteep(const SteepSum sum, const Ints steep, const Task& task, int64_t batch,
                                     const Chunk chunk, int head) {
  const int c = threadAgain() % kKeys, block = threadAgain() / kKeys;
  if (!isSteep(steep, block)) return;
  const auto number = [](const auto& rows, int t, int n) { return ptx::lowOf<T>(*rows.at(t, n)); };
  const int first = block * kBlock, end = first + kBlock;
  SEQPAR_ROLLED
  for (int t = first; t < end; ++t) {
    float run = 1, total = 0;
    if (sum.ofRows) {
      SEQPAR_ROLLED
      for (int j = t; j >= first; --j) {
        total += forgetting(run, number(sum.g, t, j) * number(sum.x, j, c));
        run *= channelDecay(task, batch, chunk, head, j, c);
      }
    } else {
      SEQPAR_ROLLED
      for (int i = t; i < end; ++i) {
        if (i > t) run *= channelDecay(task, batch, chunk, head, i, c);
        total += forgetting(run, number(sum.g, i, t) * number(sum.x, i, c) + number(sum.h, i, t) * number(sum.y, i, c));
      }
    }
    sum.to[t * kKeys + c] = total;
  }
}

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughSteepBlocks() {
  bool steep = false;
  for (int n = 0; n < kBlocks; ++n) steep = steep || isSteep(memory_.steep, n);
  if (!steep) return;
  const Floats sums{memory_.kNear};  // and qNear
  const auto through = [&](float(&c)[4][4], const SteepSum& sum) {
    ptx::syncthreads();
    sumSteep<T>(sum, memory_.steep, task_, batch_, chunk_, head_);
    ptx::syncthreads();
    if (!isSteep(memory_.steep, row_ / kBlock)) return;
    eachPair(c, row_, channel_, [&](int t, int n, float& x, float& y) {
      x += sums[t * kKeys + n];
      y += sums[t * kKeys + n + 1];
    });
  };
  through(dq_, {true, ofScores(), keys(), ofScores(), keys(), sums});
  through(dRow_, {true, ofKeys(), keys(), ofKeys(), keys(), sums});
  through(dColumn_, {false, ofScores(), queries(), ofKeys(), keys(), sums});
}

/// A thread has a block of one channel.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::ofChannelGates() {
  const int c = threadAgain() % kKeys, block = threadAgain() / kKeys, first = block * kBlock;
  const int zeros = memory_.zeros[block * kKeys + c];
  float sums[kBlock], run = 0;
  SEQPAR_UNROLL
  for (int i = kBlock; i-- > 0;) {
    run += memory_.run[(first + i) * kRunStride + c];
    if ((zeros >> i & 1) != 0) run = 0;
    sums[i] = run;
  }
  const Floats ofBlocks = memory_.suffix;
  ofBlocks[block * kKeys + c] = run;
  ptx::syncthreads();
  if (task_.dGates.data == nullptr || c >= task_.dk) return;
  float after = 0;
  SEQPAR_UNROLL
  for (int n = 0; n < DifferentiateMemory::kHalves; ++n) after += memory_.boundary[n * kKeys + c];
  const int last = (kBlocks - 1) * kKeys + c;
  after = forgetting(memory_.before[last] * memory_.totals[last], after);
  SEQPAR_UNROLL
  for (int n = 0; n < kBlocks; ++n) after += memory_.blockEnds[n * kKeys + c];
  for (int n = kBlocks - 1; n > block; --n) {
    after = ofBlocks[n * kKeys + c] + (memory_.zeros[n * kKeys + c] != 0 ? 0 : after);
  }
  const int64_t to = rowOf(task_.dGates, batch_, chunk_.first + first, head_) + c;
  SEQPAR_UNROLL
  for (int i = 0; i < kBlock; ++i) {
    if (first + i >= chunk_.rows) break;
    storeNumber(task_.dGates.data, task_.gateType, to + i * task_.dGates.token,
                sums[i] + (zeros >> i != 0 ? 0 : after));
  }
}

}  // namespace seqpar::attn::delta::half
