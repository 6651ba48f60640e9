// The last step of the backward on sm_90a, for decays of tokens and without decays: Differentiate (differentiate.h)
// with wgmma.
//
// Work      a CTA of 256 threads, two per SM, has one (chunk, head of q and k, batch entry), for all heads that share q
//           and k; up to 128 columns of values
// Roles     two warpgroups: each has 64 channels of the gradients of q and k, and half of the columns of dX; the first
//           has the gradients of scores, the second those of the scores of keys
// Tiles     chunks of 64 tokens x 128 channels; values in blocks of 64 columns, states in steps of 32. Gradients are
//           fp32 in registers, at most 96 per thread
// Smem      DifferentiateSm90Memory, 103 KiB
// Barriers  __syncthreads() between steps
// Overlap   cp.async loads the states of two steps ahead, then keys and queries; loads of one CTA overlap with the
//           products of the other one. No overlap with other kernels
#pragma once

#include "kernels/attn/linear/delta/half/difference_sm90.h"

namespace seqpar::attn::delta::half {

/// kTwo: two blocks of columns of values; otherwise one. kShared: several heads share q and k.
template <class T, bool kTwo, bool kShared>
class DifferentiateSm90 : DifferenceSm90<T, kTwo> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { DifferentiateSm90(task).steps(); }

 private:
  using Parts = DifferenceSm90<T, kTwo>;
  using typename Parts::KeyTile;
  using typename Parts::Memory;
  using typename Parts::StateTile;
  using Tiles = float[8][4];  ///< 16 rows and 64 columns of a warp
  using Parts::batch_;
  using Parts::channel_;
  using Parts::chunk_;
  using Parts::dState;
  using Parts::finite_;
  using Parts::group_;
  using Parts::head_;
  using Parts::kAll;
  using Parts::keepWarpSum;
  using Parts::keyHead_;
  using Parts::keys;
  using Parts::kSteps;
  using Parts::loadGates;
  using Parts::loadKeys;
  using Parts::memory_;
  using Parts::number_;
  using Parts::ofBetas;
  using Parts::ofGates;
  using Parts::ofKeys;
  using Parts::ofScores;
  using Parts::panel;
  using Parts::queries;
  using Parts::row_;
  using Parts::rowSum;
  using Parts::scaleKeys;
  using Parts::startStage;
  using Parts::startValues;
  using Parts::state;
  using Parts::sumRows;
  using Parts::task_;

  SEQPAR_DEVICE explicit DifferentiateSm90(const Task& t) : Parts(t) {}

  SEQPAR_DEVICE void steps() {
    if constexpr (kShared) {
      const int group = task_.heads / task_.keyHeads;
      const Record sums = recordOf(task_, batch_, keyHead_ * group, number_);
      for (int i = 0; i < group; ++i) {
        head_ = keyHead_ * group + i;
        throughHead();
        if (i > 0) addSums(sums);
        if (i + 1 == group) break;
        keepSums(sums);
        ptx::syncthreads();
      }
    } else {
      throughHead();
    }
    finish();
  }
  SEQPAR_DEVICE void throughHead() {
    startValues();
    startStage(0);
    startStage(1);
    loadGates();
    ptx::cpAsyncWaitGroup<2>();
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    decayWithinBlocks(memory_.tokens);
    throughValues();
    decayFromEnds(memory_.tokens);
    storeScores();
    throughStates();
    loadKeys();
    throughScores();
    ofGates();
    ofBetas();
  }

  /// dX = T^T dD in place of dD, gradients of values beta dX, and the sums of gradients of scores.
  SEQPAR_DEVICE void throughValues() {
    const int column = group_ * kColumns / 2;
    float c[4][4], d[4][4];
    const auto start = [&](float(&to)[4][4], int block) {
      multiplyTerms<T, Terms::Rows, Terms::AlongRows, kRows>(
          to, operand(memory_.inverse), operand(memory_.dX + block * kSquareBytes + column * SquareRows::kRowBytes),
          false);
    };
    warpgroup::arrive();
    start(c, 0);
    if constexpr (kTwo) start(d, 1);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(c);
    warpgroup::fenceOperand(d);
    repair(c, 0, column);
    if constexpr (kTwo) repair(d, 1, column);
    ptx::syncthreads();
    putValues(c, 0, column);
    if constexpr (kTwo) putValues(d, 1, column);
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    const int left = group_ == 0 ? memory_.dOut : memory_.dX;
    warpgroup::arrive();
    multiplyTerms<T, Terms::AlongRows, Terms::Rows, kColumns>(dColumn_, operand(left), operand(memory_.written), false);
    if constexpr (kTwo) {
      multiplyTerms<T, Terms::AlongRows, Terms::Rows, kColumns>(dColumn_, operand(left + kSquareBytes),
                                                                operand(memory_.written + kSquareBytes), true);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dColumn_);
  }
  SEQPAR_DEVICE void repair(float (&c)[4][4], int block, int column) const {
    if (ptx::voteAll(allFinite(c))) return;
    const SquareRows inverse{memory_.inverse}, dWritten{memory_.dX + block * kSquareBytes};
    recompute(c, row_, column,
              [&](int t, int v) { return sumForgetting<T, false, true>(inverse, t, dWritten, v, row_, kRows); });
  }
  SEQPAR_DEVICE void putValues(float (&c)[4][4], int block, int column) const {
    uint32_t pairs[4];
    SEQPAR_UNROLL
    for (int n = 0; n < 4; n += 2) {
      roundTiles<T>(pairs, c[n], c[n + 1]);
      storeLeft(SquareRows{memory_.dX + block * kSquareBytes}, row_, column + 8 * n, pairs);
    }
    eachPair(c, row_, column, [&](int t, int, float& x, float& y) {
      x *= memory_.beta[t];
      y *= memory_.beta[t];
    });
    storeTiles<T>({task_.dv_, batch_, chunk_, head_, block * kColumns + column, task_.dv}, row_, c);
  }

  /// Gradients of qIn, kIn and kOut.
  SEQPAR_DEVICE void throughStates() {
    SEQPAR_ROLLED
    for (int step = 0; step < kSteps; ++step) {
      const int first = step * Memory::kStep, block = first / kColumns * kSquareBytes, column = first % kColumns;
      ptx::cpAsyncWaitGroup<1>();
      warpgroup::fenceProxyAsync();
      ptx::syncthreads();
      const auto ofState = panel(state(step)), ofGradient = panel(dState(step));
      warpgroup::arrive();
      multiplyTerms<T, Terms::AlongRows, Terms::Rows, Memory::kStep>(dq_, operand(memory_.dOut + block + 2 * column),
                                                                     ofState, step > 0);
      multiplyTerms<T, Terms::AlongRows, Terms::Rows, Memory::kStep>(dRow_, operand(memory_.dX + block + 2 * column),
                                                                     ofState, step > 0);
      multiplyTerms<T, Terms::Rows, Terms::Rows, Memory::kStep>(
          dColumn_, operand(memory_.written + block + column * SquareRows::kRowBytes), ofGradient, step > 0);
      warpgroup::commit();
      if (task_.dGates.data != nullptr) ofBoundary(step);
      warpgroup::wait<0>();
      warpgroup::fenceOperand(dq_);
      warpgroup::fenceOperand(dRow_);
      warpgroup::fenceOperand(dColumn_);
      ptx::syncthreads();
      startStage(step + 2);
    }
  }
  /// The warp's part of the sum of states times their gradients.
  SEQPAR_DEVICE void ofBoundary(int step) const {
    const int thread = threadAgain();
    float sums[2] = {};
    SEQPAR_UNROLL
    for (int i = 0; i < Memory::kStep * StateTile::kWidth; i += kAll) {
      const int v = (i + thread) / StateTile::kWidth, unit = thread % StateTile::kWidth;
      uint32_t x[4], y[4];
      ptx::load(x, state(step).unit(v, unit));
      ptx::load(y, dState(step).unit(v, unit));
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        sums[0] += ptx::lowOf<T>(x[n]) * ptx::lowOf<T>(y[n]);
        sums[1] += ptx::highOf<T>(x[n]) * ptx::highOf<T>(y[n]);
      }
    }
    keepWarpSum(memory_.boundary, sums[0] + sums[1], step > 0);
  }

  /// Adds the gradients through scores; then dRow_ has those of keys.
  SEQPAR_DEVICE void throughScores() {
    float ends = 0;
    decayRows(dq_, [&](int) { return 1.0F; });
    decayRows(dRow_, [&](int t) { return -memory_.beta[t]; });
    eachPair(dColumn_, row_, channel_, [&](int t, int c, float& x, float& y) {
      const float out = memory_.tokens.out[t];
      const uint32_t key = keys().pair(t, c);
      x = forgetting(out, x);
      y = forgetting(out, y);
      ends += ptx::lowOf<T>(key) * x + ptx::highOf<T>(key) * y;
    });
    if (!finite_) clearKeys();
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    warpgroup::arrive();
    multiplyTerms<T, Terms::AlongRows, Terms::Rows, kRows>(dq_, operand(ofScores().offset), panel(keys()), true);
    multiplyTerms<T, Terms::AlongRows, Terms::Rows, kRows>(dRow_, operand(ofKeys().offset), panel(keys()), true);
    multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(dColumn_, operand(ofScores().offset), panel(queries()), true);
    multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(dColumn_, operand(ofKeys().offset), panel(keys()), true);
    warpgroup::commit();
    keepWarpSum(memory_.ends, ends, false);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dq_);
    warpgroup::fenceOperand(dRow_);
    warpgroup::fenceOperand(dColumn_);
    if (!finite_) {
      reloadKeys();
      addForgetting(dq_,
                    [&](int t, int c) { return sumForgetting<T, true, false>(ofScores(), t, keys(), c, 0, kRows); });
      addForgetting(dRow_,
                    [&](int t, int c) { return sumForgetting<T, true, false>(ofKeys(), t, keys(), c, 0, kRows); });
      addForgetting(dColumn_, [&](int t, int c) {
        return sumForgetting<T, false, false>(ofScores(), t, queries(), c, 0, kRows) +
               sumForgetting<T, false, false>(ofKeys(), t, keys(), c, 0, kRows);
      });
    }
    if (task_.dGates.data != nullptr) {
      sumRows(memory_.terms, [&](int n, int e, float key, float query) {
        return query * dq_[n][e] + key * (dRow_[n][e] - dColumn_[n][e]);
      });
    }
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) dRow_[n][e] += dColumn_[n][e];
    }
    ptx::syncthreads();
  }
  /// Keys or queries are not finite: adds sums in which a factor of 0 forgets, and lets products add 0.
  template <class Sum>
  SEQPAR_DEVICE void addForgetting(Tiles& c, const Sum& sum) const {
    const int lane = threadAgain() % 32, g = row_ + lane / 4, p = channel_ + lane % 4 * 2;
    SEQPAR_ROLLED
    for (int i = 0; i < 32; ++i) {
      const float value = sum(g + i / 2 % 2 * 8, p + i / 4 * 8 + i % 2);
      SEQPAR_UNROLL
      for (int n = 0; n < 8; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) c[n][e] += 4 * n + e == i ? value : 0;
      }
    }
  }
  SEQPAR_DEVICE void clearKeys() const {
    const uint32_t zeros[4] = {};
    ptx::syncthreads();
    SEQPAR_ROLLED
    for (int i = threadAgain(); i < kRows * KeyTile::kWidth; i += kAll) {
      ptx::store(keys().unit(i / KeyTile::kWidth, i % KeyTile::kWidth), zeros);
      ptx::store(queries().unit(i / KeyTile::kWidth, i % KeyTile::kWidth), zeros);
    }
  }
  SEQPAR_DEVICE void reloadKeys() const {
    ptx::syncthreads();
    startStage(kSteps);
    startStage(kSteps + 1);
    ptx::cpAsyncWaitGroup<0>();
    ptx::syncthreads();
    scaleKeys();
    ptx::syncthreads();
  }

  /// The warpgroup's gradients of scores, times the decays between tokens.
  SEQPAR_DEVICE void storeScores() const {
    const TokenMemory& m = memory_.tokens;
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    const SquareRows to{group_ == 0 ? memory_.inverse : memory_.ofKeys};
    const int block = row_ / kBlock;
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int i = layout.row(row_, 2 * h), last = i - group_;  // pairs with j <= last
      const float factor = group_ == 0 ? 1 : -memory_.beta[i];
      float between = m.run[i];
      SEQPAR_UNROLL
      for (int n = kBlocks; n-- > 0;) {  // blocks of columns
        if (n < block - 1) between *= m.totals[n + 1];
        SEQPAR_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int tile = 2 * n + half, j = layout.column(8 * tile);
          const float x = dColumn_[tile][2 * h], y = dColumn_[tile][2 * h + 1];
          float low = 0, high = 0;
          if (n == block) {
            ptx::loadPair(m.within + (i * kBlock + j % kBlock), low, high);
            if (group_ == 1 && i / 2 == j / 2) memory_.diagonal[i] = i % 2 == 0 ? x : y;
          } else if (n < block) {
            ptx::loadPair(m.suffix + j, low, high);
            low *= between;
            high *= between;
          }
          to.pair(i, j) = ptx::pack<T>(j <= last ? forgetting(low, factor * x) : 0,
                                       j + 1 <= last ? forgetting(high, factor * y) : 0);
        }
      }
    }
  }
  /// Multiplies by the decays from the chunk's start and factor(t).
  template <class Factor>
  SEQPAR_DEVICE void decayRows(Tiles& c, const Factor& factor) const {
    eachPair(c, row_, channel_, [&](int t, int, float& x, float& y) {
      const float in = memory_.tokens.in[t];
      x = forgetting(in, factor(t) * x);
      y = forgetting(in, factor(t) * y);
    });
  }

  SEQPAR_DEVICE void addSums(const Record& sums) {
    const auto from = [&](Tiles& c, const float* memory) {
      eachPair(c, row_, channel_, [&](int t, int n, float& x, float& y) {
        x += memory[t * kKeys + n];
        y += memory[t * kKeys + n + 1];
      });
    };
    from(dq_, sums.sumQ);
    from(dRow_, sums.sumK);
  }
  SEQPAR_DEVICE void keepSums(const Record& sums) {
    const auto to = [&](Tiles& c, float* memory) {
      eachPair(c, row_, channel_,
               [&](int t, int n, float x, float y) { ptx::storePair(memory + t * kKeys + n, x, y); });
    };
    to(dq_, sums.sumQ);
    to(dRow_, sums.sumK);
  }

  /// The gradients of q and k from those of scaled and normalized rows.
  SEQPAR_DEVICE void finish() {
    if (task_.normalize) {
      sumRows(memory_.ofQueryRows, [&](int n, int e, float, float query) { return query * dq_[n][e]; });
      sumRows(memory_.ofKeyRows, [&](int n, int e, float key, float) { return key * dRow_[n][e]; });
      ptx::syncthreads();
    }
    const auto store = [&](const Output& tensor, Tiles& c, const KeyTile& rows, const float* norms, const float* sums,
                           float scale) {
      const bool normalized = task_.normalize && scale != 0;
      const int first = ptx::AccumulatorLayout{threadAgain() % 32}.row(row_);
      float norm[2], along[2];
      SEQPAR_UNROLL
      for (int h = 0; h < 2; ++h) {
        norm[h] = norms[first + 8 * h];
        along[h] = normalized ? rowSum(sums, first + 8 * h) / (scale * scale) : 0;
      }
      eachPair(c, row_, channel_, [&](int t, int n, float& low, float& high) {
        const int h = t == first ? 0 : 1;
        const uint32_t pair = normalized ? rows.pair(t, n) : 0;
        low = norm[h] * (low - ptx::lowOf<T>(pair) * along[h]);
        high = norm[h] * (high - ptx::highOf<T>(pair) * along[h]);
      });
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        storeTiles<T>({tensor, batch_, chunk_, keyHead_, channel_ + 32 * n, task_.dk}, row_,
                      reinterpret_cast<const float(&)[4][4]>(c[4 * n]));
      }
    };
    store(task_.dq, dq_, queries(), memory_.qNorm, memory_.ofQueryRows, task_.scale);
    store(task_.dk_, dRow_, keys(), memory_.kNorm, memory_.ofKeyRows, 1);
  }

  Tiles dq_, dRow_, dColumn_;  ///< dColumn_: first the gradients of scores
};

}  // namespace seqpar::attn::delta::half
