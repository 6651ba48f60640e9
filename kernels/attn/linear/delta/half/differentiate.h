// The last step of the backward for 16-bit tensors: gradients of a chunk's tensors, from the states and gradients that
// Advance and Retreat have kept.
//
// Work      a CTA of 512 threads has one (chunk, head of q and k, batch entry), for all heads that share q and k
// Roles     16 warps alike: each has 16 tokens of all gradients in registers: a quarter of the channels, and of the
//           columns of both kinds of scores
// Tiles     chunks of 64 tokens x 128 channels; values in blocks of 64 columns
// Smem      DifferentiateMemory
// Barriers  __syncthreads() between steps
// Overlap   cp.async loads two blocks of values ahead. No overlap with other kernels
//
// With dX = T^T dD and E = dX D^T the gradient of beta_i is E_ii / beta_i, because T = (I + L)^-1 gives dL = -strict(E)
// and D_i / beta_i is the difference that token i writes; tokens whose beta is almost 0 compute the difference.
#pragma once

#include "kernels/attn/linear/delta/half/difference.h"

namespace seqpar::attn::delta::half {

/// kChannel: decays of channels.
template <class T, bool kChannel>
class Differentiate {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Differentiate(task).steps(); }

 private:
  static constexpr int kAll = kDifferentiateThreads, kQuarters = DifferentiateMemory::kQuarters;

  SEQPAR_DEVICE explicit Differentiate(const Task& t)
      : task_(t),
        columns_(paddedColumns(t)),
        warp_(ptx::uniform(ptx::thread() / 32)),
        row_(warp_ % 4 * kBlock),
        quarter_(warp_ / 4),
        channel_(quarter_ * 32) {
    int index = ptx::block();
    number_ = index % t.count;
    index /= t.count;
    keyHead_ = index % t.keyHeads;
    batch_ = index / t.keyHeads;
    chunk_ = t.chunks[t.first + number_];
    memory_.place(kChannel);
  }

  SEQPAR_DEVICE void steps() {
    const int group = task_.heads / task_.keyHeads;
    const Record sums = recordOf(task_, batch_, keyHead_ * group, number_);
    for (int i = 0; i < group; ++i) {
      head_ = keyHead_ * group + i;
      r_ = recordOf(task_, batch_, head_, number_);
      if (i == 0) startKeys();
      startTile<kRows, kAll>(SquareRows{memory_.inverse}, r_.inverse, ptx::thread());
      startBlock(0);
      startBlock(kColumns);
      loadGates();
      if (i == 0) loadKeys();
      if constexpr (!kChannel) {
        ptx::syncthreads();
        decayWithinBlocks(memory_.tokens);
      }
      throughStates();
      if constexpr (kChannel) {
        throughChannels();
        ofChannelGates();
      } else {
        throughScores();
        ofGates();
      }
      if (i > 0) addSums(sums);
      if (i + 1 < group) keepSums(sums);
      ptx::syncthreads();
    }
    finish();
  }

  SEQPAR_DEVICE KeyRows keys() const { return {memory_.keys}; }
  SEQPAR_DEVICE KeyRows queries() const { return {memory_.queries}; }
  SEQPAR_DEVICE SquareRows ofScores() const { return {memory_.dX}; }     ///< gradients of scores
  SEQPAR_DEVICE SquareRows ofKeys() const { return {memory_.dValues}; }  ///< and of those of keys

  SEQPAR_DEVICE void loadGates() {
    const int t = ptx::thread();
    if (t >= kRows) return;
    memory_.beta[t] = betaOf(task_, batch_, chunk_, head_, t);
    if constexpr (!kChannel) memory_.tokens.decay[t] = decayOf(task_, batch_, chunk_, head_, t);
    memory_.betas[t] = 0;
  }

  SEQPAR_DEVICE void startKeys() {
    startTensor<kKeys, kAll>(keys(), {task_.k, batch_, chunk_, keyHead_, 0, task_.dk}, ptx::thread());
    startTensor<kKeys, kAll>(queries(), {task_.q, batch_, chunk_, keyHead_, 0, task_.dk}, ptx::thread());
    ptx::cpAsyncCommitGroup();
  }
  /// Keys and queries with their lengths and the scale.
  SEQPAR_DEVICE void loadKeys() {
    ptx::cpAsyncWaitGroup<2>();
    ptx::syncthreads();
    if (warp_ < 8) {
      loadNorms<T>(memory_.kNorm, keys(), task_.normalize, 1);
      loadNorms<T>(memory_.qNorm, queries(), task_.normalize, task_.scale);
    }
    ptx::syncthreads();
    SEQPAR_UNROLL
    for (int i = ptx::thread(); i < kRows * kKeys / 8; i += kAll) {
      const int t = i / (kKeys / 8), unit = i % (kKeys / 8);
      const auto scale = [&](const KeyRows& rows, float norm) {
        uint32_t words[4];
        ptx::load(words, rows.unit(t, unit));
        SEQPAR_UNROLL
        for (auto& word : words) word = ptx::pack<T>(norm * ptx::lowOf<T>(word), norm * ptx::highOf<T>(word));
        ptx::store(rows.unit(t, unit), words);
      };
      if (task_.normalize) scale(keys(), memory_.kNorm[t]);
      scale(queries(), memory_.qNorm[t]);
    }
  }

  struct Stage {
    SquareRows dWritten, written, dOut;  ///< [kColumns][kRows], [kColumns][kRows], [kRows][kColumns]
    KeyRows state, dState;               ///< [kColumns][kKeys]
  };
  SEQPAR_DEVICE Stage stage(int first) const {
    const int at = memory_.blocks + first / kColumns % 2 * DifferentiateMemory::kStage;
    return {{at},
            {at + kSquareBytes},
            {at + 2 * kSquareBytes},
            {at + 3 * kSquareBytes},
            {at + 3 * kSquareBytes + kKeyBytes}};
  }
  /// A block of columns of values; commits, even beyond the last.
  SEQPAR_DEVICE void startBlock(int first) {
    if (first < columns_) {
      const Stage to = stage(first);
      const int thread = ptx::thread();
      startTile<kColumns, kAll>(to.dWritten, r_.dWritten + int64_t{first} * kRows, thread);
      startTile<kColumns, kAll>(to.written, r_.written + int64_t{first} * kRows, thread);
      startTensor<kColumns, kAll>(to.dOut, {task_.dOut, batch_, chunk_, head_, first, task_.dv}, thread);
      startTile<kColumns, kAll>(to.state, r_.state + int64_t{first} * kKeys, thread);
      startTile<kColumns, kAll>(to.dState, r_.dState + int64_t{first} * kKeys, thread);
    }
    ptx::cpAsyncCommitGroup();
  }

  template <int kTiles>
  SEQPAR_DEVICE static void clear(float (&c)[kTiles][4]) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
  }

  /// Gradients of qIn, kIn and kOut, and of both kinds of scores.
  SEQPAR_DEVICE void throughStates() {
    clear(dq_);
    clear(dRow_);
    clear(dColumn_);
    clear(ofKeys_);
    clear(ofScores_);
    float boundary[2] = {};
    const int pair = ptx::thread() % (kKeys / 2), part = ptx::thread() / (kKeys / 2), column = quarter_ * kBlock;
    const SquareRows dX{memory_.dX}, dValues{memory_.dValues};
    for (int first = 0; first < columns_; first += kColumns) {
      ptx::cpAsyncWaitGroup<1>();
      ptx::syncthreads();
      if (!kChannel && first == 0) decayFromEnds(memory_.tokens);
      const Stage s = stage(first);
      ofValues(s.dWritten);
      ptx::syncthreads();
      storeTensor<kColumns, kRows, kAll>({task_.dv_, batch_, chunk_, head_, first, task_.dv}, 0, dValues,
                                         ptx::thread());
      smallBetas(first, s);
      SEQPAR_UNROLL
      for (int k = 0; k < kColumns; k += kBlock) {
        uint32_t x[4], o[4], d[4];
        loadLeft<true>(x, dX, row_, k);
        loadLeft<true>(o, s.dOut, row_, k);
        loadLeft<false>(d, s.written, row_, k);
        if (column <= row_) {
          accumulate<T, false>(ofKeys_, x, s.written, column, k);
          accumulate<T, false>(ofScores_, o, s.written, column, k);
        }
        accumulate<T, false>(dq_, o, s.state, channel_, k);
        accumulate<T, false>(dRow_, x, s.state, channel_, k);
        accumulate<T, false>(dColumn_, d, s.dState, channel_, k);
      }
      SEQPAR_UNROLL
      for (int v = part * 8; v < part * 8 + 8; ++v) {
        const uint32_t x = s.state.pair(v, 2 * pair), y = s.dState.pair(v, 2 * pair);
        boundary[0] += ptx::lowOf<T>(x) * ptx::lowOf<T>(y);
        boundary[1] += ptx::highOf<T>(x) * ptx::highOf<T>(y);
      }
      ptx::syncthreads();
      startBlock(first + 2 * kColumns);
    }
    ptx::cpAsyncWaitGroup<0>();
    ptx::storePair(memory_.boundary + part * kKeys + 2 * pair, boundary[0], boundary[1]);
  }
  static_assert(kAll == 8 * kKeys / 2 && kColumns == 8 * 8);

  /// dX = T^T dD; the values' gradients are beta dX.
  SEQPAR_DEVICE void ofValues(const SquareRows& dWritten) {
    const SquareRows inverse{memory_.inverse};
    const int column = quarter_ * kBlock;
    float c[2][4] = {};
    for (int k = row_; k < kRows; k += kBlock) {
      uint32_t a[4];
      loadLeft<false>(a, inverse, row_, k);
      accumulate<T, true>(c, a, dWritten, column, k);
    }
    if (!allFinite(c)) {
      recompute(c, row_, column,
                [&](int t, int v) { return sumForgetting<T, false, true>(inverse, t, dWritten, v, row_, kRows); });
    }
    uint32_t pairs[4];
    roundTiles<T>(pairs, c[0], c[1]);
    storeLeft(SquareRows{memory_.dX}, row_, column, pairs);
    eachPair(c, row_, column, [&](int t, int, float& x, float& y) {
      x *= memory_.beta[t];
      y *= memory_.beta[t];
    });
    roundTiles<T>(pairs, c[0], c[1]);
    storeLeft(SquareRows{memory_.dValues}, row_, column, pairs);
  }

  /// Whether D_i / beta_i has too few digits.
  SEQPAR_DEVICE bool isSmall(int t) const { return fabsf(memory_.beta[t]) < (ptx::kIsBf16<T> ? 0x1p-64F : 0x1p-6F); }

  SEQPAR_DEVICE void smallBetas(int first, const Stage& s) {
    for (int t = warp_; t < chunk_.rows; t += kAll / 32) {
      if (!isSmall(t)) continue;
      const float term = differenceTerm<T>(
          {task_, batch_, chunk_, head_, t, first, keys(), s.state, s.written, SquareRows{memory_.dX}});
      if (ptx::thread() % 32 == 0) memory_.betas[t] += term;
    }
  }

  /// Stores gradients of scores, times between(i, j), and of betas.
  template <class Between>
  SEQPAR_DEVICE void storeScores(const Between& between) {
    const int column = quarter_ * kBlock;
    const auto put = [&](const SquareRows& to, int i, int j, float x, float y) { to.pair(i, j) = ptx::pack<T>(x, y); };
    eachPair(ofKeys_, row_, column, [&](int i, int j, float x, float y) {
      if (i == j) ofBeta(i, x);
      if (i == j + 1) ofBeta(i, y);
      const float beta = -memory_.beta[i];
      put(ofKeys(), i, j, i > j ? forgetting(between(i, j), beta * x) : 0,
          i > j + 1 ? forgetting(between(i, j + 1), beta * y) : 0);
    });
    eachPair(ofScores_, row_, column, [&](int i, int j, float x, float y) {
      put(ofScores(), i, j, i >= j ? forgetting(between(i, j), x) : 0,
          i >= j + 1 ? forgetting(between(i, j + 1), y) : 0);
    });
  }
  /// Multiplies gradients of decayed rows by in(t, c) and out(t, c), decays from the chunk's start and to its end.
  template <class In, class Out>
  SEQPAR_DEVICE void decayRows(const In& in, const Out& out) {
    eachPair(dq_, row_, channel_, [&](int t, int c, float& x, float& y) {
      x = forgetting(in(t, c), x);
      y = forgetting(in(t, c + 1), y);
    });
    eachPair(dRow_, row_, channel_, [&](int t, int c, float& x, float& y) {
      const float beta = -memory_.beta[t];
      x = forgetting(in(t, c), beta * x);
      y = forgetting(in(t, c + 1), beta * y);
    });
    eachPair(dColumn_, row_, channel_, [&](int t, int c, float& x, float& y) {
      x = forgetting(out(t, c), x);
      y = forgetting(out(t, c + 1), y);
    });
  }
  /// Then dRow_ has the gradients of keys.
  SEQPAR_DEVICE void addColumns() {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) dRow_[n][e] += dColumn_[n][e];
    }
  }

  /// part = a b for the warp's rows and channels, terms first ... last - 1; kLeft: a's terms are in rows of memory.
  template <class Element, bool kLeft>
  SEQPAR_DEVICE void multiply(float (&part)[4][4], const SquareRows& a, const KeyRows& b, int first, int last) const {
    clear(part);
    for (int k = first; k < last; k += kBlock) {
      uint32_t x[4];
      loadLeft<kLeft>(x, a, row_, k);
      accumulate<Element, false>(part, x, b, channel_, k);
    }
    if (!allFinite(part)) {
      recompute(part, row_, channel_,
                [&](int t, int c) { return sumForgetting<Element, kLeft, false>(a, t, b, c, first, last); });
    }
  }
  SEQPAR_DEVICE static void add(float (&c)[4][4], const float (&part)[4][4]) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) c[n][e] += part[n][e];
    }
  }

  SEQPAR_DEVICE void throughScores() {
    const TokenMemory& m = memory_.tokens;
    storeScores([&](int i, int j) { return decayBetween(m, i, j); });
    decayRows([&](int t, int) { return m.in[t]; }, [&](int t, int) { return m.out[t]; });
    sumRows(memory_.ends, [&](int n, int e, float key, float) { return key * dColumn_[n][e]; });
    ptx::syncthreads();
    float part[4][4];
    multiply<T, true>(part, ofScores(), keys(), 0, row_ + kBlock);
    add(dq_, part);
    multiply<T, true>(part, ofKeys(), keys(), 0, row_ + kBlock);
    add(dRow_, part);
    multiply<T, false>(part, ofScores(), queries(), row_, kRows);
    add(dColumn_, part);
    multiply<T, false>(part, ofKeys(), keys(), row_, kRows);
    add(dColumn_, part);
    sumRows(memory_.terms, [&](int n, int e, float key, float query) {
      return query * dq_[n][e] + key * (dRow_[n][e] - dColumn_[n][e]);
    });
    addColumns();
    ptx::syncthreads();
  }

  /// The same with decays of channels.
  SEQPAR_DEVICE void throughChannels();
  SEQPAR_DEVICE void decayChannels();
  template <bool kForgets>
  SEQPAR_DEVICE void decayKeys(const BlockDecays& decays);
  /// The product of the decays of blocks first ... last - 1.
  SEQPAR_DEVICE float totals(int first, int last, int c) const {
    float product = 1;
    for (int n = first; n < last; ++n) product *= memory_.totals[n * kKeys + c];
    return product;
  }
  /// Calls each(t, c, n, e) for the warp's pairs of channels c, c + 1: elements [n][e] and [n][e + 1].
  template <class Each>
  SEQPAR_DEVICE void eachChannelPair(const Each& each) const {
    const ptx::AccumulatorLayout layout{ptx::thread() % 32};
    const int t = layout.row(row_), first = layout.column(channel_);
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      each(t, first + 8 * n, n, 0);
      each(t + 8, first + 8 * n, n, 2);
    }
  }
  SEQPAR_DEVICE void decayBefore(float (&c)[4][4], const SquareRows& scores, const KeyRows& near, float sign);
  SEQPAR_DEVICE void decayAfter();
  /// Sums over the block's tokens.
  SEQPAR_DEVICE void sumEnds(float (&ends)[4][2]);
  SEQPAR_DEVICE void throughBlock();
  SEQPAR_DEVICE void throughSteepBlocks();
  SEQPAR_DEVICE void ofChannelGates();

  SEQPAR_DEVICE void ofBeta(int t, float sum) {
    if (t >= chunk_.rows || task_.dBeta.data == nullptr) return;
    const float gradient = isSmall(t) ? memory_.betas[t] : sum / memory_.beta[t];
    storeNumber(task_.dBeta.data, task_.betaType, rowOf(task_.dBeta, batch_, chunk_.first + t, head_), gradient);
  }

  /// to[quarter][t] = sum over the warp's channels of term(tile, element, key, query).
  template <class Term>
  SEQPAR_DEVICE void sumRows(float* to, const Term& term) {
    const ptx::AccumulatorLayout layout{ptx::thread() % 32};
    const int t = layout.row(row_), c = layout.column(channel_);
    float sums[2] = {};
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int h = 0; h < 2; ++h) {
        const uint32_t key = keys().pair(t + 8 * h, c + 8 * n), query = queries().pair(t + 8 * h, c + 8 * n);
        sums[h] += term(n, 2 * h, ptx::lowOf<T>(key), ptx::lowOf<T>(query)) +
                   term(n, 2 * h + 1, ptx::highOf<T>(key), ptx::highOf<T>(query));
      }
    }
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      sums[h] += ptx::shflXor(sums[h], 1);
      sums[h] += ptx::shflXor(sums[h], 2);
      if (layout.lane % 4 == 0) to[quarter_ * kRows + t + 8 * h] = sums[h];
    }
  }
  SEQPAR_DEVICE float rowSum(const float* sums, int t) const {
    return (sums[t] + sums[kRows + t]) + (sums[2 * kRows + t] + sums[3 * kRows + t]);
  }

  SEQPAR_DEVICE void ofGates();
  SEQPAR_DEVICE void addSums(const Record& sums);
  SEQPAR_DEVICE void keepSums(const Record& sums);
  SEQPAR_DEVICE void finish();

  const Task& task_;
  const int columns_, warp_, row_, quarter_, channel_;
  int number_, keyHead_, head_ = 0;
  int64_t batch_;
  Chunk chunk_;
  Record r_;
  DifferentiateMemory memory_;
  float dq_[4][4], dRow_[4][4], dColumn_[4][4], ofKeys_[2][4], ofScores_[2][4];
};

}  // namespace seqpar::attn::delta::half
