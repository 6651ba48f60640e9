// Decays and operands of Differentiate for decays of channels.
//
// Where decays are mild, operands of bf16 tensors are fp16, multiplied by powers of 2: gradients of decays are sums of
// differences of gradients of rows and columns, which cancel only as far as both have the same terms. Terms of a token
// with itself cancel exactly, so that they are added behind those sums.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate_states.h"

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
    const uint32_t any = ptx::reduxMax(decaysOf(product));
    if (lane == 0) steep[warp] = static_cast<int>(any);
    if (half != 0) return;
    ptx::storePair(totals + block * kKeys + channel, product[0], product[1]);
    zeros[block * kKeys + channel] = static_cast<int>(bits[0]);
    zeros[block * kKeys + channel + 1] = static_cast<int>(bits[1]);
  }
};
static_assert(kDifferentiateThreads == kBlocks * kKeys && kSteepParts == kKeys / 32);

/// The values of the thread's pairs of dX, columns from `first` on; then the sums of their products.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::loadValues(ValuePairs& values, int first) const {
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const TensorRows rows{task_.v, batch_, chunk_, head_, first, task_.dv};
  const int t = layout.row(row_), c = layout.column(quarter_ * kBlock);
  const bool paired = hasPairs(rows);
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) {
    const uint16_t* const at = rows.data + (t + 8 * h) * rows.stride + c;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      values[n][h] = 0;
      ptx::loadGlobalIf(values[n][h], reinterpret_cast<const uint32_t*>(at + 8 * n),
                        paired && t + 8 * h < rows.rows && c + 8 * n < rows.columns);
    }
  }
}
/// Those of tensors without pairs of elements.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::finishValues(ValuePairs& values, int first) const {
  const TensorRows rows{task_.v, batch_, chunk_, head_, first, task_.dv};
  if (hasPairs(rows)) return;
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  SEQPAR_UNROLL
  for (int n = 0; n < 2; ++n) {
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      values[n][h] = anyPairOf<>(rows, layout.row(row_, 2 * h), layout.column(quarter_ * kBlock + 8 * n));
    }
  }
}
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::sumValues(const ValuePairs& values, const float (&dX)[2][4],
                                                                 int first) {
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) {
    float sum = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      sum += dX[n][2 * h] * ptx::lowOf<T>(values[n][h]) + dX[n][2 * h + 1] * ptx::highOf<T>(values[n][h]);
    }
    sum += ptx::shflXor(sum, 1);
    sum += ptx::shflXor(sum, 2);
    float& total = memory_.terms[quarter_ * kRows + layout.row(row_, 2 * h)];
    if (layout.lane % 4 == 0) total = first == 0 ? sum : total + sum;
  }
}

/// The largest magnitude of the warp's gradients of scores. Small betas of a row could need more digits than the
/// others.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::shareMagnitudes() {
  if constexpr (!kMayBeMild) return;
  uint32_t most = 0;
  const auto add = [&](float x) {
    const uint32_t bits = asBits(x) & 0x7fffffffU;
    most = bits > most ? bits : most;
  };
  if (quarter_ * kBlock <= row_) {
    eachPair(ofScores_, row_, 0, [&](int, int, float x, float y) {
      add(task_.scale * x);
      add(task_.scale * y);
    });
    eachPair(ofKeys_, row_, 0, [&](int t, int, float x, float y) {
      add(memory_.beta[t] * x);
      add(memory_.beta[t] * y);
    });
  }
  const int lane = threadAgain() % 32;
  const float beta = fabsf(memory_.beta[row_ + lane % kBlock]);
  if (beta != 0 && !(beta >= 0x1p-12F)) most = 0x7fffffffU;
  most = ptx::reduxMax(most);
  if (lane == 0) memory_.ofScores[warp_] = static_cast<int>(most);
}
static_assert(kDifferentiateThreads / 32 == kBlocks * kSteepParts);

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE typename Differentiate<T, kChannel, kWgmma>::Scales Differentiate<T, kChannel, kWgmma>::findScales()
    const {
  Scales scales{false, 1, 1, 1};
  if constexpr (!kMayBeMild) return scales;
  const int lane = threadAgain() % 32;
  const auto mostOf = [&](const Ints& of) {
    return ptx::reduxMax(lane < kAll / 32 ? static_cast<uint32_t>(of[lane]) : 0);
  };
  const uint32_t rows = mostOf(memory_.ofRows), scores = mostOf(memory_.ofScores);
  scales.mild = mostOf(memory_.steep) == kMildDecays && fitsPower(rows) && fitsPower(scores) &&
                (rows >> 23) + (scores >> 23) > 2 * 127 - 60;
  if (!scales.mild) return scales;
  scales.rows = powerTo(14, rows);
  scales.scores = powerTo(14, scores);
  scales.down = inverseOfPower(scales.rows) * inverseOfPower(scales.scores);
  return scales;
}

/// Decays from the start of blocks, and decayed rows; then keys before later blocks and decays to the end of blocks. Of
/// mild decays, rows are multiplied by `up`, and keys are decayed to the end of their block instead.
template <class T, bool kChannel, bool kWgmma>
template <bool kMild>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::decayChannels(HalfBlockDecays& decays, float up) {
  constexpr int kTokens = HalfBlockDecays::kTokens;
  const int block = decays.block, c = decays.channel;
  const auto put = [&](int to, int row, const float(&factors)[2], uint32_t x) {
    const float low = ptx::lowOf<T>(x), high = ptx::highOf<T>(x);
    KeyRows{to}.pair(row, c) = kMild ? packInRange<Fp16>(factors[0] * low, factors[1] * high)
                                     : ptx::pack<T>(forgetting(factors[0], low), forgetting(factors[1], high));
  };
  const bool isFirst = decays.half == 0;
  float run[2] = {isFirst ? 1 : decays.other[0], isFirst ? 1 : decays.other[1]};
  SEQPAR_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    const int t = decays.first + i;
    run[0] *= decays.of[i][0];
    run[1] *= decays.of[i][1];
    ptx::storePair(memory_.run + t * kRunStride + c, run[0], run[1]);
    const float factors[2] = {kMild ? up * run[0] : run[0], kMild ? up * run[1] : run[1]};
    put(memory_.kNear, t, factors, keys().pair(t, c));
    put(memory_.qNear, t, factors, queries().pair(t, c));
  }
  const auto ends = BlockDecays::ends(memory_.totals, block, c);
  ptx::storePair((isFirst ? memory_.before : memory_.after) + block * kKeys + c,  // no pointers to arrays in registers
                 isFirst ? ends.before[0] : ends.after[0], isFirst ? ends.before[1] : ends.after[1]);
  float suffix[2] = {isFirst ? decays.other[0] : 1, isFirst ? decays.other[1] : 1};
  if constexpr (kMild) {
    suffix[0] *= up;
    suffix[1] *= up;
  }
  SEQPAR_UNROLL
  for (int i = kTokens; i-- > 0;) {
    const int t = decays.first + i;
    const uint32_t key = keys().pair(t, c);
    if constexpr (kMild) {
      put(memory_.near, t, suffix, key);
    } else {
      ptx::storePair(memory_.suffix + t * kRunStride + c, suffix[0], suffix[1]);
      SEQPAR_UNROLL
      for (int n = 1; n < kBlocks; ++n) {
        const float decay[2] = {suffix[0] * ends.toStart[n][0], suffix[1] * ends.toStart[n][1]};
        if (n > block) put(memory_.near, nearRow(n) + t, decay, key);
      }
    }
    suffix[0] *= decays.of[i][0];
    suffix[1] *= decays.of[i][1];
  }
}

/// Gradients of scores, times `up` and beta or the scale. Blocks above the diagonal are not written.
template <class T, bool kChannel, bool kWgmma>
template <class Score>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::storeChannelScores(float up) {
  const int column = quarter_ * kBlock;
  if (column > row_) return;
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const int first = layout.row(row_);
  const float scale = task_.scale;
  if (column == row_ && layout.column(row_) == first / 2 * 2) {  // the diagonal
    const bool odd = first % 2 != 0;
    memory_.diagonal[first] = scale * (odd ? ofScores_[0][1] : ofScores_[0][0]);
    memory_.diagonal[first + 8] = scale * (odd ? ofScores_[1][3] : ofScores_[1][2]);
  }
  const auto store = [&](const SquareRows& to, int i, int j, float factor, float x, float y) {
    const float low = i > j ? up * (factor * x) : 0, high = i > j + 1 ? up * (factor * y) : 0;
    to.pair(i, j) = std::is_same_v<Score, T> ? ptx::pack<Score>(low, high) : packInRange<Score>(low, high);
  };
  eachPair(ofKeys_, row_, column,
           [&](int i, int j, float x, float y) { store(ofKeys(), i, j, -memory_.beta[i], x, y); });
  eachPair(ofScores_, row_, column, [&](int i, int j, float x, float y) { store(ofScores(), i, j, scale, x, y); });
}

/// Terms of gradients of decays, and of betas by their keys; the sum of the gradients of keys. finish(t, c, n, e)
/// completes elements [n][e] and [n][e + 1], of channels c and c + 1 of token t.
template <class T, bool kChannel, bool kWgmma>
template <class Finish>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::storeTerms(const Finish& finish) {
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  float ofKey[2] = {};
  eachKeyAndQuery([&](int n, int e, uint32_t key, uint32_t query) {
    const int t = layout.row(row_, e), c = layout.column(channel_ + 8 * n);
    finish(t, c, n, e);
    const float diagonal = memory_.diagonal[t];
    const float k[2] = {ptx::lowOf<T>(key), ptx::highOf<T>(key)}, q[2] = {ptx::lowOf<T>(query), ptx::highOf<T>(query)};
    float sums[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      float &dq = dq_[n][e + i], &dRow = dRow_[n][e + i], &dColumn = dColumn_[n][e + i];
      sums[i] = q[i] * dq + k[i] * (dRow - dColumn);
      ofKey[e / 2] += k[i] * dRow;
      dq += diagonal * k[i];
      dRow += dColumn + diagonal * q[i];
    }
    ptx::storePair(memory_.run + t * kRunStride + c, sums[0], sums[1]);
  });
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) {
    ofKey[h] += ptx::shflXor(ofKey[h], 1);
    ofKey[h] += ptx::shflXor(ofKey[h], 2);
    if (layout.lane % 4 == 0) memory_.ends[quarter_ * kRows + layout.row(row_, 2 * h)] = ofKey[h];
  }
}

}  // namespace seqpar::attn::delta::half
