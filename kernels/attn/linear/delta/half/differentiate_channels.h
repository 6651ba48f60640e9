// The parts of Differentiate for decays of channels.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate.h"

namespace seqpar::attn::delta::half {

/// The decays of half a block and a pair of channels: those of a thread. A warp has a block of 32 channels.
struct HalfBlockDecays {
  static constexpr int kTokens = kBlock / 2;
  const int warp = threadAgain() / 32, lane = threadAgain() % 32;
  const int block = warp / (kKeys / 32), half = lane / 16, channel = warp % (kKeys / 32) * 32 + lane % 16 * 2;
  const int first = block * kBlock + half * kTokens;  ///< token
  float of[kTokens][2], other[2] = {1, 1};            ///< other: the products of the block's other half

  /// Stores the block's products, whether it is steep, and which decays are 0.
  SEQPAR_DEVICE void storeTotals(float* totals, int* steep, int* zeros) {
    uint32_t bits[2] = {};
    SEQPAR_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        other[e] *= of[i][e];
        bits[e] |= of[i][e] == 0 ? 1U << (half * kTokens + i) : 0;
      }
    }
    float product[2];
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float mine = other[e];
      other[e] = ptx::shflXor(mine, 16);
      product[e] = mine * other[e];
      bits[e] |= asBits(ptx::shflXor(asFloat(bits[e]), 16));
    }
    const uint32_t any = ptx::reduxMax(product[0] < kSteep || product[1] < kSteep ? 1U : 0U);
    if (lane == 0) steep[warp] = static_cast<int>(any);
    if (half != 0) return;
    ptx::storePair(totals + block * kKeys + channel, product[0], product[1]);
    zeros[block * kKeys + channel] = static_cast<int>(bits[0]);
    zeros[block * kKeys + channel + 1] = static_cast<int>(bits[1]);
  }
};
static_assert(kDifferentiateThreads == kBlocks * kKeys && kSteepParts == kKeys / 32);

/// Decayed rows; then before a barrier, those for later blocks.
template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::decayChannels() {
  HalfBlockDecays decays;
  constexpr int kTokens = HalfBlockDecays::kTokens;
  const int block = decays.block, c = decays.channel;
  loadDecays(decays.of, task_, batch_, chunk_, head_, decays.first, c);
  decays.storeTotals(memory_.totals, memory_.steep, memory_.zeros);
  const auto put = [&](int to, int row, const float(&factors)[2], uint32_t x) {
    KeyRows{to}.pair(row, c) =
        ptx::pack<T>(forgetting(factors[0], ptx::lowOf<T>(x)), forgetting(factors[1], ptx::highOf<T>(x)));
  };
  const bool isFirst = decays.half == 0;
  float run[2] = {isFirst ? 1 : decays.other[0], isFirst ? 1 : decays.other[1]};
  SEQPAR_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    const int t = decays.first + i;
    run[0] *= decays.of[i][0];
    run[1] *= decays.of[i][1];
    ptx::storePair(memory_.run + t * kKeys + c, run[0], run[1]);
    put(memory_.kNear, t, run, keys().pair(t, c));
    put(memory_.qNear, t, run, queries().pair(t, c));
  }
  ptx::syncthreads();
  const auto ends = BlockDecays::ends(memory_.totals, block, c);
  const float* const product = isFirst ? ends.before : ends.after;
  ptx::storePair((isFirst ? memory_.before : memory_.after) + block * kKeys + c, product[0], product[1]);
  float suffix[2] = {isFirst ? decays.other[0] : 1, isFirst ? decays.other[1] : 1};
  SEQPAR_UNROLL
  for (int i = kTokens; i-- > 0;) {
    const int t = decays.first + i;
    ptx::storePair(memory_.suffix + t * kKeys + c, suffix[0], suffix[1]);
    const uint32_t key = keys().pair(t, c);
    SEQPAR_UNROLL
    for (int n = 1; n < kBlocks; ++n) {
      const float decay[2] = {suffix[0] * ends.toStart[n][0], suffix[1] * ends.toStart[n][1]};
      if (n > block) put(memory_.near, nearRow(n) + t, decay, key);
    }
    suffix[0] *= decays.of[i][0];
    suffix[1] *= decays.of[i][1];
  }
}

/// With B the block of 16 tokens of a row: rows of dq and dRow are decays from the start of B, times the sum of what
/// earlier blocks' states and tokens contribute; those of dColumn are decays to the end of B, times that of later ones.
/// Pairs of tokens of B have quotients of decays.
template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::throughChannels() {
  const int block = row_ / kBlock;
  ptx::syncthreads();  // the stages are read
  decayChannels();
  const auto one = [](int, int) { return 1.0F; };
  storeScores(one, one);
  ptx::syncthreads();
  decayBefore();
  decayAfter();
  if (!isSteep(memory_.steep, block)) throughBlock();
  throughSteepBlocks();
  ptx::syncthreads();
  const Floats terms = memory_.run;
  eachChannelPair([&](int t, int c, int n, int e) {
    const uint32_t query = queries().pair(t, c), key = keys().pair(t, c);
    ptx::storePair(
        terms + t * kKeys + c, ptx::lowOf<T>(query) * dq_[n][e] + ptx::lowOf<T>(key) * (dRow_[n][e] - dColumn_[n][e]),
        ptx::highOf<T>(query) * dq_[n][e + 1] + ptx::highOf<T>(key) * (dRow_[n][e + 1] - dColumn_[n][e + 1]));
  });
  addColumns();
  ptx::syncthreads();
}

/// dq and dRow = decays from the block's start times (the decays before the block times them, the latter by -beta, plus
/// scores times earlier keys).
template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::decayBefore() {
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
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      ptx::loadPair(memory_.run + (t + 8 * h) * kKeys + c, run[0], run[1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float &dq = dq_[n][2 * h + e], &dRow = dRow_[n][2 * h + e];
        dq = forgetting(run[e], forgetting(before[e], dq) + ofQueries[n][2 * h + e]);
        dRow = forgetting(run[e], forgetting(before[e], betas[h] * dRow) + ofRows[n][2 * h + e]);
      }
    }
  }
}

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::decayAfter() {
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
      ptx::loadPair(memory_.suffix + (t + 8 * h) * kKeys + c, suffix[0], suffix[1]);
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
      for (int e = 0; e < 4; ++e) dColumn_[n][e] = forgetting(total[e % 2], dColumn_[n][e]) + part[n][e];
    }
  }
  eachChannelPair([&](int row, int c, int n, int e) {
    float low, high;
    ptx::loadPair(memory_.suffix + row * kKeys + c, low, high);
    dColumn_[n][e] = forgetting(low, dColumn_[n][e]);
    dColumn_[n][e + 1] = forgetting(high, dColumn_[n][e + 1]);
  });
}

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::sumEnds(float (&ends)[4][2]) {
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
template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::throughBlock() {
  const Floats run = memory_.run;
  const int lane = threadAgain() % 32;
  const ptx::Tf32Layout operand{lane};
  const auto number = [](const auto& rows, int t, int c) { return ptx::lowOf<T>(*rows.at(t, c)); };
  const auto load = [&](uint32_t(&x)[4], const SquareRows& a, bool inRows, int k) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = operand.row(row_, i), term = operand.term(k, i);
      x[i] = asBits(inRows ? number(a, row, term) : number(a, term, row));
    }
  };
  const auto eachDecay = [&](const auto& each) {
    eachChannelPair([&](int t, int c, int n, int e) {
      float low, high;
      ptx::loadPair(run + t * kKeys + c, low, high);
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
        b[i] = ptx::roundToTf32(number(keys(), t, c) * ptx::rcpApprox(run[t * kKeys + c]));
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
        const float decay = run[t * kKeys + column];
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

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::throughSteepBlocks() {
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
template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::ofChannelGates() {
  const int c = threadAgain() % kKeys, block = threadAgain() / kKeys, first = block * kBlock;
  const int zeros = memory_.zeros[block * kKeys + c];
  float sums[kBlock], run = 0;
  SEQPAR_UNROLL
  for (int i = kBlock; i-- > 0;) {
    run += memory_.run[(first + i) * kKeys + c];
    if ((zeros >> i & 1) != 0) run = 0;
    sums[i] = run;
  }
  const Floats ofBlocks = memory_.suffix;
  ofBlocks[block * kKeys + c] = run;
  ptx::syncthreads();
  if (task_.dGates.data == nullptr || c >= task_.dk) return;
  float after = 0;
  SEQPAR_UNROLL
  for (int n = 0; n < 8; ++n) after += memory_.boundary[n * kKeys + c];
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
