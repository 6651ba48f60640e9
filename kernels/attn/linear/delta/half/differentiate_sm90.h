// The last step of the backward on sm_90a: Differentiate (differentiate.h) with wgmma. Decays of channels:
// differentiate_channels_sm90.h.
//
// Work      a CTA of 256 threads, two per SM, has one (chunk, head of q and k, batch entry), for all heads that share q
//           and k; up to 128 columns of values
// Roles     two warpgroups: each has 64 channels of the gradients of q and k, and half of the columns of dX; the first
//           has the gradients of scores, the second those of the scores of keys
// Tiles     chunks of 64 tokens x 128 channels; values in blocks of 64 columns, states in steps of 32. Gradients are
//           fp32 in registers, at most 96 per thread
// Smem      DifferentiateSm90Memory, 103 KiB; 109 KiB with decays of channels
// Barriers  __syncthreads() between steps
// Overlap   bulk copies load the states of two steps ahead, then cp.async keys and queries, with decays of tokens in
//           place of a block of values; loads of one CTA overlap with the products of the other one. No overlap with
//           other kernels
#pragma once

#include "kernels/attn/linear/delta/half/difference_sm90.h"

namespace seqpar::attn::delta::half {

/// kTwo: two blocks of columns of values; otherwise one. kShared: several heads share q and k. kChannel: decays of
/// channels.
template <class T, bool kTwo, bool kShared, bool kChannel>
class DifferentiateSm90 : DifferenceSm90<T, kTwo, kChannel> {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { DifferentiateSm90(task).steps(); }

 private:
  using Parts = DifferenceSm90<T, kTwo, kChannel>;
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
  using Parts::kBlockBytes;
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
  using Parts::placeBarriers;
  using Parts::queries;
  using Parts::row_;
  using Parts::rowsOfPanel;
  using Parts::rowSum;
  using Parts::scaleKeys;
  using Parts::startRows;
  using Parts::startStage;
  using Parts::startValues;
  using Parts::state;
  using Parts::task_;
  using Parts::waitStates;
  using Parts::waitValues;
  using Parts::warp_;

  SEQPAR_DEVICE explicit DifferentiateSm90(const Task& t) : Parts(t) {}

  SEQPAR_DEVICE void steps() {
    placeBarriers();
    if constexpr (kShared) {
      const int group = headsOfKey(task_);
      const Record sums = recordOf(task_, batch_, keyHead_ * group, number_);
      for (int i = 0; i < group; ++i) {
        head_ = keyHead_ * group + i;
        throughHead(i);
        ofBetas();
        if (i > 0) addSums(sums);
        if (i + 1 == group) break;
        keepSums(sums);
        warpgroup::fenceProxyAsync();  // ordinary stores before copies of the next head
        ptx::syncthreads();
      }
      finish();
    } else {
      throughHead(0);
      finish();
      ofBetas();  // a call, before which gradients would leave registers
    }
  }
  /// `number`: of the head among those that share q and k.
  SEQPAR_DEVICE void throughHead(int number) {
    startValues();
    loadGates();
    if constexpr (!kChannel) {
      ptx::syncwarp();
      decayWithinBlocks(memory_.tokens);  // while values arrive
    }
    ptx::cpAsyncWaitGroup<0>();
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    waitValues(number);
    if constexpr (kChannel) throughValues();
    multiplyScores();
    if constexpr (!kChannel) decayFromEnds(memory_.tokens);
    storeScores();
    throughStates(number);
    loadKeys();
    if constexpr (kChannel) {
      throughChannels();
    } else {
      throughScores();
      ofGates();
    }
  }

  /// dX = T^T dD in place of dD, and gradients of values beta dX. With decays of tokens, Retreat has stored these, and
  /// they are used in place of dX.
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
  }
  /// The sums of gradients of scores.
  SEQPAR_DEVICE void multiplyScores() {
    const int left = group_ == 0 ? memory_.dOut : memory_.dX;
    warpgroup::arrive();
    multiplyTerms<T, Terms::AlongRows, Terms::Rows, kColumns>(dColumn_, operand(left), operand(memory_.written), false);
    if constexpr (kTwo) {
      multiplyTerms<T, Terms::AlongRows, Terms::Rows, kColumns>(dColumn_, operand(left + kBlockBytes),
                                                                operand(memory_.written + kBlockBytes), true);
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
    storeTiles<T>({task_.dv_, batch_, chunk_, head_, block * kColumns + column, task_.dv}, row_, ofKeys(), column, c);
  }

  /// Gradients of qIn, kIn and kOut.
  SEQPAR_DEVICE void throughStates(int number) {
    // Otherwise the compiler keeps gradients of the previous head in registers that throughValues() needs: it cannot
    // see that the first products replace them.
    if constexpr (kShared && !kChannel) {
      clear(dq_);
      clear(dRow_);
    }
    float boundary = 0;
    const int lane = threadAgain() % 32;
    SEQPAR_ROLLED
    for (int step = 0; step < kSteps; ++step) {
      const int first = step * Memory::kStep, block = first / kColumns * kBlockBytes, column = first % kColumns;
      waitStates(step, number);
      const auto ofState = panel(state(step)), ofGradient = panel(dState(step));
      warpgroup::arrive();
      multiplyTerms<T, Terms::AlongRows, Terms::Rows, Memory::kStep>(dq_, operand(memory_.dOut + block + 2 * column),
                                                                     ofState, step > 0);
      multiplyTerms<T, Terms::AlongRows, Terms::Rows, Memory::kStep>(dRow_, operand(memory_.dX + block + 2 * column),
                                                                     ofState, step > 0);
      multiplyTerms<T, Terms::Rows, Terms::Rows, Memory::kStep>(
          dColumn_, operand(memory_.written + block + column * SquareRows::kRowBytes), ofGradient, step > 0);
      warpgroup::commit();
      if (task_.dGates.data != nullptr) {
        if constexpr (kChannel) {
          ofBoundaries(step, threadAgain());
        } else {
          boundary += ofBoundary(step, lane);
        }
      }
      warpgroup::wait<0>();
      warpgroup::fenceOperand(dq_);
      warpgroup::fenceOperand(dRow_);
      warpgroup::fenceOperand(dColumn_);
      ptx::syncthreads();
      startStage(step);
    }
    if constexpr (!kChannel) keepWarpSum(memory_.boundary, boundary);
  }
  SEQPAR_DEVICE static void clear(Tiles& c) {
    SEQPAR_UNROLL
    for (auto& tile : c) {
      SEQPAR_UNROLL
      for (float& x : tile) x = 0;
    }
  }
  /// The thread's part of the sum of states times their gradients. A warp has 16 channels: the diagonal of a product
  /// takes fewer instructions than the elements' products.
  SEQPAR_DEVICE float ofBoundary(int step, int lane) const {
    static_assert(kAll / 32 * kBlock == kKeys);
    constexpr int kRowBytes = StateTile::kRowBytes;
    const int g = lane / 4, p = lane % 4;
    const int r = lane % 8, odd = lane / 8 % 2, upper = lane / 16, unit = warp_ % 4 * 2;
    const uint32_t panel = ptx::sharedAddress(ptx::sharedMemory()) +
                           static_cast<uint32_t>(state(step).offset + group_ * StateTile::kPanelBytes + r * kRowBytes);
    const uint32_t left = panel + static_cast<uint32_t>(odd * 8 * kRowBytes + ((unit + upper) ^ r) * 16);
    const uint32_t right =
        panel + static_cast<uint32_t>(Memory::kStage / 2 + upper * 8 * kRowBytes + ((unit + odd) ^ r) * 16);
    float c[2][4] = {};
    SEQPAR_UNROLL
    for (int v = 0; v < Memory::kStep; v += kBlock) {
      uint32_t x[4], y[4];
      ptx::ldmatrixX4(x, left + static_cast<uint32_t>(v * kRowBytes));
      ptx::ldmatrixX4(y, right + static_cast<uint32_t>(v * kRowBytes));
      ptx::mmaM16N8K16<T>(c[0], x, y[0], y[1]);
      ptx::mmaM16N8K16<T>(c[1], x, y[2], y[3]);
    }
    if (g / 2 != p) return 0;
    return g % 2 == 0 ? c[0][0] + c[1][2] : c[0][1] + c[1][3];
  }

  /// The same for each channel: two lanes have eight channels.
  SEQPAR_DEVICE void ofBoundaries(int step, int thread) const {
    const int unit = thread % StateTile::kWidth;
    float sums[8] = {};
    SEQPAR_UNROLL
    for (int i = 0; i < Memory::kStep * StateTile::kWidth; i += kAll) {
      const int v = (i + thread) / StateTile::kWidth;
      uint32_t x[4], y[4];
      ptx::load(x, state(step).unit(v, unit));
      ptx::load(y, dState(step).unit(v, unit));
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        sums[2 * n] += ptx::lowOf<T>(x[n]) * ptx::lowOf<T>(y[n]);
        sums[2 * n + 1] += ptx::highOf<T>(x[n]) * ptx::highOf<T>(y[n]);
      }
    }
    float* const to = memory_.boundaries + (thread / 32 * kKeys + unit * 8);
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) {
      const float sum = sums[n] + ptx::shflXor(sums[n], StateTile::kWidth);
      if (thread % 32 < StateTile::kWidth) to[n] = step > 0 ? to[n] + sum : sum;
    }
  }

  /// The warpgroup's gradients of scores, times the decays between tokens; 0 above the diagonal.
  SEQPAR_DEVICE void storeScores() const {
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    const SquareRows to{group_ == 0 ? memory_.inverse : memory_.ofKeys};
    const TokenMemory& m = memory_.tokens;
    const int block = row_ / kBlock;
    float factor[2], between[2];  // between: from the end of block n to the token
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int i = layout.row(row_, 2 * h);
      factor[h] = group_ == 0 ? 1 : kChannel ? -memory_.beta[i] : -1;
      between[h] = kChannel ? 1 : m.run[i];
    }
    SEQPAR_UNROLL
    for (int n = kBlocks; n-- > 0;) {  // blocks of columns
      uint32_t words[4] = {};
      if (!kChannel && n < block - 1) {
        const float total = m.totals[n + 1];
        between[0] *= total;
        between[1] *= total;
      }
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int half = j / 2, h = j % 2, i = layout.row(row_, 2 * h), column = layout.column(8 * (2 * n + half));
        const float x = dColumn_[2 * n + half][2 * h], y = dColumn_[2 * n + half][2 * h + 1];
        if (n > block) break;
        float low = 1, high = 1;
        if (n < block) {
          if constexpr (!kChannel) ptx::loadPair(m.suffix + column, low, high);
          words[j] = ptx::pack<T>(forgetting(between[h] * low, factor[h] * x),  //
                                  forgetting(between[h] * high, factor[h] * y));
          continue;
        }
        const int last = i - group_;  // pairs with j <= last
        if (group_ == 1 && i / 2 == column / 2) memory_.diagonal[i] = i % 2 == 0 ? x : y;
        if constexpr (!kChannel) ptx::loadPair(m.within + (i * kBlock + column % kBlock), low, high);
        words[j] = ptx::pack<T>(column <= last ? forgetting(low, factor[h] * x) : 0,
                                column + 1 <= last ? forgetting(high, factor[h] * y) : 0);
      }
      storeLeft(to, row_, n * kBlock, words, layout.lane);
    }
  }
  // Decays of tokens, and without decays, differentiate_tokens_sm90.h:
  SEQPAR_DEVICE void throughScores();
  template <class Sum>
  SEQPAR_DEVICE void addForgetting(Tiles& c, const Sum& sum) const;
  SEQPAR_DEVICE void clearKeys() const;
  SEQPAR_DEVICE void reloadKeys() const;
  SEQPAR_DEVICE void decayRows(Tiles& c, float sign) const;

  SEQPAR_DEVICE void addSums(const Record& sums);
  SEQPAR_DEVICE void keepSums(const Record& sums);
  SEQPAR_DEVICE void finish();

  // Decays of channels, differentiate_channels_sm90.h:
  using PairTiles = float[2][4];  ///< 16 rows and 16 of the warp's channels
  SEQPAR_DEVICE static PairTiles& pairOf(Tiles& c) { return reinterpret_cast<PairTiles&>(c); }
  /// Moves the first pair of tiles to the end: one loop has the code of all pairs, few instructions to fetch.
  SEQPAR_DEVICE static void rotate(Tiles& c) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) {
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        const float x = c[n][e];
        SEQPAR_UNROLL
        for (int i = n; i < 6; i += 2) c[i][e] = c[i + 2][e];
        c[n + 6][e] = x;
      }
    }
  }
  /// The warp's first column of a pair in a half's arrays.
  SEQPAR_DEVICE int firstColumn(int pair) const { return group_ * Memory::kHalf + pair * kBlock; }
  /// Calls each(t, column, n, e) for the thread's neighboring columns of a pair: elements [n][e] and [n][e + 1].
  template <class Each>
  SEQPAR_DEVICE void eachOfPair(int pair, const Each& each) const {
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    const int t = layout.row(row_), first = layout.column(firstColumn(pair));
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      each(t, first + 8 * n, n, 0);
      each(t + 8, first + 8 * n, n, 2);
    }
  }
  /// The same with the decays after token t to the end of its block; in steep blocks, after storeSuffixes().
  template <class Each>
  SEQPAR_DEVICE void eachSuffix(int pair, bool steep, const Each& each) const;
  /// Left operand of a product of 8 terms of the block's own pairs.
  template <bool kTermsInRows>
  SEQPAR_DEVICE void loadTf32(uint32_t (&x)[4], const SquareRows& from, int term) const {
    const ptx::Tf32Layout operand{threadAgain() % 32};
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = operand.row(row_, i), k = operand.term(term, i);
      x[i] = asBits(ptx::lowOf<T>(*(kTermsInRows ? from.at(row, k) : from.at(k, row))));
    }
  }
  SEQPAR_DEVICE void throughChannels();
  SEQPAR_DEVICE void decayChannels(int half);
  SEQPAR_DEVICE void storeTotals(int local, float low, float high) const;
  SEQPAR_DEVICE void decayBlock(PairTiles& c, int pair, int block) const;
  SEQPAR_DEVICE void decayBefore(int pair);
  SEQPAR_DEVICE void withinRows(int half, int pair);
  SEQPAR_DEVICE void decayAfter(int half, int pair, bool steep);
  SEQPAR_DEVICE void storeSuffixes(int half, int pair) const;
  SEQPAR_DEVICE void withinColumns(int half, int pair);
  SEQPAR_DEVICE void storeTerms(int half, int pair);
  SEQPAR_DEVICE void addPairs(int half, int pair);
  SEQPAR_DEVICE void ofChannelGates(int half) const;

  Tiles dq_, dRow_, dColumn_;  ///< dColumn_: first the gradients of scores
};

}  // namespace seqpar::attn::delta::half
