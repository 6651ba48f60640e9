// The parts of Differentiate for decays of channels.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate.h"

namespace seqpar::attn::delta::half {

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::decayChannels() {
  BlockDecays decays;
  if (warp_ < 8) {
    decays.load(task_, batch_, chunk_, head_);
    decays.storeTotals(memory_.totals, memory_.steep);
    int zeros[2] = {};
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) zeros[e] |= decays.of[i][e] == 0 ? 1 << i : 0;
    }
    int* const to = memory_.zeros + BlockDecays::block() * kKeys + BlockDecays::channel();
    to[0] = zeros[0];
    to[1] = zeros[1];
  }
  ptx::syncthreads();
  if (warp_ >= 8) return;
  if (decays.template allFinite<T>(keys()) && decays.template allFinite<T>(queries())) {
    decayKeys<false>(decays);
  } else {
    decayKeys<true>(decays);
  }
}

/// kForgets: rows may have NaN or infinity, which factors of 0 discard.
template <class T, bool kChannel>
template <bool kForgets>
SEQPAR_DEVICE void Differentiate<T, kChannel>::decayKeys(const BlockDecays& decays) {
  const int block = BlockDecays::block(), c = BlockDecays::channel();
  const auto ends = BlockDecays::ends(memory_.totals);
  const auto put = [&](int to, int row, const float(&factors)[2], const float(&x)[2]) {
    KeyRows{to}.pair(row, c) = kForgets ? ptx::pack<T>(forgetting(factors[0], x[0]), forgetting(factors[1], x[1]))
                                        : ptx::pack<T>(factors[0] * x[0], factors[1] * x[1]);
  };
  uint32_t raw[kBlock];
  float run[2] = {1, 1}, suffix[2] = {1, 1};
  SEQPAR_UNROLL
  for (int i = 0; i < kBlock; ++i) {
    const int t = block * kBlock + i;
    raw[i] = keys().pair(t, c);
    const uint32_t q = queries().pair(t, c);
    const float key[2] = {ptx::lowOf<T>(raw[i]), ptx::highOf<T>(raw[i])};
    const float query[2] = {ptx::lowOf<T>(q), ptx::highOf<T>(q)};
    run[0] *= decays.of[i][0];
    run[1] *= decays.of[i][1];
    ptx::storePair(memory_.run + t * kKeys + c, run[0], run[1]);
    put(memory_.kNear, t, run, key);
    put(memory_.qNear, t, run, query);
  }
  SEQPAR_UNROLL
  for (int i = kBlock; i-- > 0;) {
    const int t = block * kBlock + i;
    const float key[2] = {ptx::lowOf<T>(raw[i]), ptx::highOf<T>(raw[i])};
    ptx::storePair(memory_.suffix + t * kKeys + c, suffix[0], suffix[1]);
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
  storeScores([](int, int) { return 1.0F; });
  ptx::syncthreads();
  const KeyRows near{memory_.near + nearRow(block) * KeyRows::kRowBytes};
  decayBefore(dq_, ofScores(), near, 1);
  decayBefore(dRow_, ofKeys(), near, -1);
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

/// c = decays from the block's start times (sign beta) (decays before the block times c + scores times earlier keys).
template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::decayBefore(float (&c)[4][4], const SquareRows& scores,
                                                           const KeyRows& near, float sign) {
  float part[4][4];
  clear(part);
  SEQPAR_UNROLL
  for (int k = 0; k + kBlock < kRows; k += kBlock) {
    if (k >= row_) break;
    uint32_t x[4];
    loadLeft<true>(x, scores, row_, k);
    accumulate<T, false>(part, x, near, channel_, k);
  }
  if (!allFinite(part)) {
    recompute(part, row_, channel_,
              [&](int t, int n) { return sumForgetting<T, true, false>(scores, t, near, n, 0, row_); });
  }
  const int block = row_ / kBlock;
  eachChannelPair([&](int t, int channel, int n, int e) {
    float low, high;
    ptx::loadPair(memory_.run + t * kKeys + channel, low, high);
    const float factor = sign < 0 ? -memory_.beta[t] : 1;
    c[n][e] = forgetting(low, forgetting(totals(0, block, channel), factor * c[n][e]) + part[n][e]);
    c[n][e + 1] = forgetting(high, forgetting(totals(0, block, channel + 1), factor * c[n][e + 1]) + part[n][e + 1]);
  });
}

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::decayAfter() {
  const int block = row_ / kBlock;
  const KeyRows qNear{memory_.qNear}, kNear{memory_.kNear};
  float ends[4][2] = {}, part[4][4];
  eachChannelPair([&](int t, int c, int n, int e) {
    float low, high;
    ptx::loadPair(memory_.suffix + t * kKeys + c, low, high);
    const uint32_t key = keys().pair(t, c);
    ends[n][0] += forgetting(low * totals(block + 1, kBlocks, c), ptx::lowOf<T>(key) * dColumn_[n][e]);
    ends[n][1] += forgetting(high * totals(block + 1, kBlocks, c + 1), ptx::highOf<T>(key) * dColumn_[n][e + 1]);
  });
  sumEnds(ends);
  const auto products = [&](int k) {
    clear(part);
    uint32_t x[4];
    loadLeft<false>(x, ofScores(), row_, k);
    accumulate<T, false>(part, x, qNear, channel_, k);
    loadLeft<false>(x, ofKeys(), row_, k);
    accumulate<T, false>(part, x, kNear, channel_, k);
    if (!allFinite(part)) {
      recompute(part, row_, channel_, [&](int t, int n) {
        return sumForgetting<T, false, false>(ofScores(), t, qNear, n, k, k + kBlock) +
               sumForgetting<T, false, false>(ofKeys(), t, kNear, n, k, k + kBlock);
      });
    }
  };
  SEQPAR_ROLLED
  for (int later = kBlocks - 1; later > block; --later) {
    products(later * kBlock);
    eachChannelPair([&](int, int c, int n, int e) {
      float low, high;
      ptx::loadPair(memory_.totals + later * kKeys + c, low, high);
      dColumn_[n][e] = forgetting(low, dColumn_[n][e]) + part[n][e];
      dColumn_[n][e + 1] = forgetting(high, dColumn_[n][e + 1]) + part[n][e + 1];
    });
  }
  eachChannelPair([&](int t, int c, int n, int e) {
    float low, high;
    ptx::loadPair(memory_.suffix + t * kKeys + c, low, high);
    dColumn_[n][e] = forgetting(low, dColumn_[n][e]);
    dColumn_[n][e + 1] = forgetting(high, dColumn_[n][e + 1]);
  });
}

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::sumEnds(float (&ends)[4][2]) {
  const int lane = ptx::thread() % 32, first = ptx::AccumulatorLayout{lane}.column(channel_);
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
  const ptx::Tf32Layout operand{ptx::thread() % 32};
  const ptx::AccumulatorLayout layout{ptx::thread() % 32};
  const auto number = [](const auto& rows, int t, int c) { return ptx::lowOf<T>(*rows.at(t, c)); };
  const auto product = [&](float(&c)[4], const SquareRows& a, bool inRows, const KeyRows& b, bool divided, int n) {
    SEQPAR_UNROLL
    for (int k = row_; k < row_ + kBlock; k += 8) {
      uint32_t x[4], y[2];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = operand.row(row_, i), term = operand.term(k, i);
        x[i] = asBits(inRows ? number(a, at, term) : number(a, term, at));
      }
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int t = operand.termOfB(k, i), column = operand.column(channel_ + 8 * n);
        const float decay = run[t * kKeys + column];
        y[i] = ptx::roundToTf32(number(b, t, column) * (divided ? ptx::rcpApprox(decay) : decay));
      }
      ptx::mmaM16N8K8Tf32(c, x, y[0], y[1]);
    }
  };
  SEQPAR_UNROLL
  for (int n = 0; n < 4; ++n) {
    float dq[4] = {}, dRow[4] = {}, dColumn[4] = {};
    product(dq, ofScores(), true, keys(), true, n);
    product(dRow, ofKeys(), true, keys(), true, n);
    product(dColumn, ofScores(), false, queries(), false, n);
    product(dColumn, ofKeys(), false, keys(), false, n);
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float decay = run[layout.row(row_, e) * kKeys + channel_ + 8 * n + layout.column(0, e)];
      dq_[n][e] += decay * dq[e];
      dRow_[n][e] += decay * dRow[e];
      dColumn_[n][e] += ptx::rcpApprox(decay) * dColumn[e];
    }
  }
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
  const int c = ptx::thread() % kKeys, block = ptx::thread() / kKeys;
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
static_assert(kDifferentiateThreads == kBlocks * kKeys);

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
  const int c = ptx::thread() % kKeys, block = ptx::thread() / kKeys, first = block * kBlock;
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
  after = forgetting(totals(0, kBlocks, c), after);
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
