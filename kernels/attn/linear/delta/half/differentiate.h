// The last step of the backward for 16-bit tensors: gradients of a chunk's tensors, from the states and gradients that
// Advance and Retreat have kept.
//
// Work: one CTA per (chunk, head of q and k, batch entry), for all heads that share q and k. Roles: warps; each has 16
// tokens of all gradients in registers: half of the channels, half of the columns of both kinds of scores. Smem:
// DifferentiateMemory; cp.async loads two blocks of 64 columns of values ahead. Barriers: __syncthreads() between
// steps.
//
// With dX = T^T dD and E = dX D^T the gradient of beta_i is E_ii / beta_i, because T = (I + L)^-1 gives dL = -strict(E)
// and D_i / beta_i is the difference that token i writes; tokens whose beta is almost 0 compute the difference.
#pragma once

#include "kernels/attn/linear/delta/half/channels.h"

namespace seqpar::attn::delta::half {

/// A token in one block of columns.
struct Token {
  const uint16_t* values;
  int columns, t;
  const uint16_t *kIn, *scores;
  const uint16_t *written, *state, *dX;
};
/// A warp's sum over columns v of dX_v (values_v - (kIn S)_v - sum over earlier j of scores_j D_jv).
template <class T>
SEQPAR_DEVICE_NOINLINE float differenceTerm(const Token token) {
  const int lane = ptx::thread() % 32;
  float values[2], sum = 0;
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) values[h] = lane + 32 * h < token.columns ? toFloat<T>(token.values[lane + 32 * h]) : 0;
  const auto subtract = [&](float factor, const uint16_t* row) {
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) values[h] -= forgetting(factor, toFloat<T>(row[lane + 32 * h]));
  };
  for (int c = 0; c < kKeys; ++c) subtract(toFloat<T>(token.kIn[c]), token.state + c * kColumnStride);
  for (int j = 0; j < token.t; ++j) subtract(toFloat<T>(token.scores[j]), token.written + j * kColumnStride);
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) sum += toFloat<T>(token.dX[lane + 32 * h]) * values[h];
  return sumOfWarp(sum);
}

/// kChannel: decays of channels.
template <class T, bool kChannel>
class Differentiate {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Differentiate(task).steps(); }

 private:
  SEQPAR_DEVICE explicit Differentiate(const Task& t)
      : task_(t),
        columns_(paddedColumns(t)),
        warp_(ptx::uniform(ptx::thread() / 32)),
        row_(warp_ % 4 * kBlock),
        half_(warp_ / 4) {
    int64_t index = ptx::block();
    number_ = static_cast<int>(index % t.count);
    index /= t.count;
    keyHead_ = static_cast<int>(index % t.keyHeads);
    batch_ = index / t.keyHeads;
    chunk_ = t.chunks[t.first + number_];
    memory_.place(ptx::sharedMemory());
  }

  SEQPAR_DEVICE void steps() {
    const int group = task_.heads / task_.keyHeads;
    const Record sums = recordOf(task_, batch_, keyHead_ * group, number_);
    for (int i = 0; i < group; ++i) {
      head_ = keyHead_ * group + i;
      r_ = recordOf(task_, batch_, head_, number_);
      startRows(memory_.inverse, kSquareStride, r_.inverse, kRows, kRows, kRows);
      startBlock(0);
      startBlock(kColumns);
      loadGates();
      if (i == 0) loadKeys();
      ptx::syncthreads();
      if constexpr (!kChannel) decaysBetween(memory_.between, memory_.decay, memory_.in, memory_.out);
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

  SEQPAR_DEVICE void loadGates() {
    const int t = ptx::thread();
    if (t >= kRows) return;
    memory_.beta[t] = betaOf(task_, batch_, chunk_, head_, t);
    if constexpr (!kChannel) memory_.decay[t] = decayOf(task_, batch_, chunk_, head_, t);
    memory_.betas[t] = 0;
  }

  SEQPAR_DEVICE void loadKeys() {
    loadTensor(memory_.keys, kKeyStride, task_.k, batch_, chunk_, keyHead_, 0, kKeys, task_.dk);
    loadTensor(memory_.queries, kKeyStride, task_.q, batch_, chunk_, keyHead_, 0, kKeys, task_.dk);
    ptx::syncthreads();
    loadNorms<T>(memory_.kNorm, memory_.keys, task_.normalize, 1);
    loadNorms<T>(memory_.qNorm, memory_.queries, task_.normalize, task_.scale);
    ptx::syncthreads();
    scaleRows<T>(memory_.keys, memory_.kNorm);
    scaleRows<T>(memory_.queries, memory_.qNorm);
  }

  /// A block of columns of values; commits, even beyond the last.
  SEQPAR_DEVICE void startBlock(int first) {
    if (first < columns_) {
      uint16_t* const to = block(first);
      startRows(to, kColumnStride, r_.dWritten + first, columns_, kRows, kColumns);
      startRows(to + kColumnTile, kColumnStride, r_.written + first, columns_, kRows, kColumns);
      startRows(to + 2 * kColumnTile, kColumnStride, r_.dOut + first, columns_, kRows, kColumns);
      startRows(to + 3 * kColumnTile, kColumnStride, r_.state + first, columns_, kKeys, kColumns);
      startRows(to + 3 * kColumnTile + kStateTile, kColumnStride, r_.dState + first, columns_, kKeys, kColumns);
    }
    ptx::cpAsyncCommitGroup();
  }
  SEQPAR_DEVICE uint16_t* block(int first) const {
    return memory_.blocks + first / kColumns % 2 * DifferentiateMemory::kBlock16;
  }

  /// Gradients of qIn, kIn and kOut, and of both kinds of scores.
  SEQPAR_DEVICE void throughStates() {
    clear(dq_);
    clear(dRow_);
    clear(dColumn_);
    clear(ofKeys_);
    clear(ofScores_);
    float boundary = 0;
    for (int first = 0; first < columns_; first += kColumns) {
      ptx::cpAsyncWaitGroup<1>();
      ptx::syncthreads();
      const uint16_t *const dWritten = block(first), *const written = dWritten + kColumnTile;
      const InRows dOut{written + kColumnTile, kColumnStride}, state{written + 2 * kColumnTile, kColumnStride};
      const InRows dState{state.data + kStateTile, kColumnStride}, dX{memory_.dX, kColumnStride};
      const InRows values{written, kColumnStride};
      ofValues(AsRows{dWritten, kColumnStride});
      ptx::syncthreads();
      storeTensor(task_.dv_, batch_, chunk_, head_, first, kColumns, task_.dv, memory_.dValues, kColumnStride);
      smallBetas(first, written, state.data);
      const int channel = half_ * 64, column = half_ * 32;
      if (column <= row_ + kBlock - 1) {
        accumulate<T>(ofKeys_, dX, row_, values, column, 0, kColumns);
        accumulate<T>(ofScores_, dOut, row_, values, column, 0, kColumns);
      }
      accumulate<T>(dq_, dOut, row_, state, channel, 0, kColumns);
      accumulate<T>(dRow_, dX, row_, state, channel, 0, kColumns);
      accumulate<T>(dColumn_, values, row_, dState, channel, 0, kColumns);
      const int at = ptx::thread() / 2 * kColumnStride + ptx::thread() % 2 * (kColumns / 2);
      SEQPAR_UNROLL
      for (int v = 0; v < kColumns / 2; v += 8) {
        uint32_t x[4], y[4];
        ptx::load(x, state.data + at + v);
        ptx::load(y, dState.data + at + v);
        SEQPAR_UNROLL
        for (int j = 0; j < 4; ++j) {
          boundary += ptx::lowOf<T>(x[j]) * ptx::lowOf<T>(y[j]) + ptx::highOf<T>(x[j]) * ptx::highOf<T>(y[j]);
        }
      }
      ptx::syncthreads();
      startBlock(first + 2 * kColumns);
    }
    ptx::cpAsyncWaitGroup<0>();
    boundary += ptx::shflXor(boundary, 1);
    if (ptx::thread() % 2 == 0) memory_.boundary[ptx::thread() / 2] = boundary;
  }
  static_assert(kThreads == 2 * kKeys);
  template <int kTiles>
  SEQPAR_DEVICE static void clear(float (&c)[kTiles][4]) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
  }

  /// dX = T^T dD; the values' gradients are beta dX.
  SEQPAR_DEVICE void ofValues(const AsRows& dWritten) {
    float c[4][4];
    multiply<T>(c, AsRows{memory_.inverse, kSquareStride}, row_, dWritten, half_ * 32, row_, kRows);
    eachPair(c, row_, half_ * 32, [&](int t, int v, float x, float y) {
      const float beta = memory_.beta[t];
      storePair<T>(memory_.dX + t * kColumnStride + v, x, y);
      storePair<T>(memory_.dValues + t * kColumnStride + v, beta * x, beta * y);
    });
  }

  /// Whether D_i / beta_i has too few digits.
  SEQPAR_DEVICE bool isSmall(int t) const { return fabsf(memory_.beta[t]) < (ptx::kIsBf16<T> ? 0x1p-64F : 0x1p-6F); }

  SEQPAR_DEVICE void smallBetas(int first, const uint16_t* written, const uint16_t* state) {
    for (int t = warp_; t < chunk_.rows; t += kWarps) {
      if (!isSmall(t)) continue;
      const int left = task_.dv - first;
      const float term = differenceTerm<T>(
          {static_cast<const uint16_t*>(task_.v.data) + rowOf(task_.v, batch_, chunk_.first + t, head_) + first,
           left < kColumns ? left : kColumns, t, r_.kIn + t * kKeys, r_.keyScores + t * kRows, written, state,
           memory_.dX + t * kColumnStride});
      if (ptx::thread() % 32 == 0) memory_.betas[t] += term;
    }
  }

  /// Stores gradients of scores, times between(i, j, x), and of betas.
  template <class Between>
  SEQPAR_DEVICE void storeScores(const Between& between) {
    uint16_t *const ofScores = memory_.dX, *const ofKeys = memory_.dValues;
    eachPair(ofKeys_, row_, half_ * 32, [&](int i, int j, float x, float y) {
      if (i == j) ofBeta(i, x);
      if (i == j + 1) ofBeta(i, y);
      const float beta = -memory_.beta[i];
      storePair<T>(ofKeys + i * kSquareStride + j, i > j ? between(i, j, beta * x) : 0,
                   i > j + 1 ? between(i, j + 1, beta * y) : 0);
    });
    eachPair(ofScores_, row_, half_ * 32, [&](int i, int j, float x, float y) {
      storePair<T>(ofScores + i * kSquareStride + j, i >= j ? between(i, j, x) : 0,
                   i >= j + 1 ? between(i, j + 1, y) : 0);
    });
  }
  /// Multiplies gradients of decayed rows by in(t, c) and out(t, c), decays from the chunk's start and to its end.
  template <class In, class Out>
  SEQPAR_DEVICE void decayRows(const In& in, const Out& out) {
    eachPair(dq_, row_, half_ * 64, [&](int t, int c, float& x, float& y) {
      x = forgetting(in(t, c), x);
      y = forgetting(in(t, c + 1), y);
    });
    eachPair(dRow_, row_, half_ * 64, [&](int t, int c, float& x, float& y) {
      const float beta = -memory_.beta[t];
      x = forgetting(in(t, c), beta * x);
      y = forgetting(in(t, c + 1), beta * y);
    });
    eachPair(dColumn_, row_, half_ * 64, [&](int t, int c, float& x, float& y) {
      x = forgetting(out(t, c), x);
      y = forgetting(out(t, c + 1), y);
    });
  }
  /// Then dRow_ has the gradients of keys.
  SEQPAR_DEVICE void addColumns() {
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) dRow_[n][e] += dColumn_[n][e];
    }
  }

  SEQPAR_DEVICE void throughScores() {
    const uint16_t *const ofScores = memory_.dX, *const ofKeys = memory_.dValues;
    const int channel = half_ * 64;
    storeScores([&](int i, int j, float x) { return forgetting(memory_.between[i * kSquare + j], x); });
    decayRows([&](int t, int) { return memory_.in[t]; }, [&](int t, int) { return memory_.out[t]; });
    sumRows(memory_.ends, [&](int n, int e, float key, float) { return key * dColumn_[n][e]; });
    ptx::syncthreads();
    const AsRows keys{memory_.keys, kKeyStride}, queries{memory_.queries, kKeyStride};
    add<T>(dq_, InRows{ofScores, kSquareStride}, row_, keys, channel, 0, row_ + kBlock);
    add<T>(dRow_, InRows{ofKeys, kSquareStride}, row_, keys, channel, 0, row_ + kBlock);
    add<T>(dColumn_, AsRows{ofScores, kSquareStride}, row_, queries, channel, row_, kRows);
    add<T>(dColumn_, AsRows{ofKeys, kSquareStride}, row_, keys, channel, row_, kRows);
    sumRows(memory_.terms, [&](int n, int e, float key, float query) {
      return query * dq_[n][e] + key * (dRow_[n][e] - dColumn_[n][e]);
    });
    addColumns();
    ptx::syncthreads();
  }

  /// The same with decays of channels.
  SEQPAR_DEVICE void throughChannels();
  /// The product of the decays of blocks first ... last - 1.
  SEQPAR_DEVICE float totals(int first, int last, int c) const {
    float product = 1;
    for (int n = first; n < last; ++n) product *= memory_.channels.totals[n * kKeys + c];
    return product;
  }
  template <class Decay>
  SEQPAR_DEVICE void addDecayed(float (&c)[8][4], const float (&part)[8][4], const Decay& decay) const {
    const int lane = ptx::thread() % 32, t = row_ + lane / 4, first = half_ * 64 + lane % 4 * 2;
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) c[n][e] += forgetting(decay(t + e / 2 * 8, first + 8 * n + e % 2), part[n][e]);
    }
  }
  /// Sums over the block's tokens of keys times the gradients of keys at the chunk's end.
  SEQPAR_DEVICE void sumEnds();
  /// Pairs of tokens of a block that is not steep, in TF32.
  SEQPAR_DEVICE void throughBlock(const uint16_t* ofScores, const uint16_t* ofKeys);

  SEQPAR_DEVICE void ofChannelGates();

  SEQPAR_DEVICE void ofBeta(int t, float sum) {
    if (t >= chunk_.rows || task_.dBeta.data == nullptr) return;
    const float gradient = isSmall(t) ? memory_.betas[t] : sum / memory_.beta[t];
    storeNumber(task_.dBeta.data, task_.betaType, rowOf(task_.dBeta, batch_, chunk_.first + t, head_), gradient);
  }

  /// to[half][t] = sum over the warp's channels of term(tile, element, key, query).
  template <class Term>
  SEQPAR_DEVICE void sumRows(float* to, const Term& term) {
    const int lane = ptx::thread() % 32, t = row_ + lane / 4, c = half_ * 64 + lane % 4 * 2;
    float sums[2] = {};
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) {
      SEQPAR_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int at = (t + 8 * h) * kKeyStride + c + 8 * n;
        const uint32_t keys = *reinterpret_cast<const uint32_t*>(memory_.keys + at);
        const uint32_t queries = *reinterpret_cast<const uint32_t*>(memory_.queries + at);
        sums[h] += term(n, 2 * h, ptx::lowOf<T>(keys), ptx::lowOf<T>(queries)) +
                   term(n, 2 * h + 1, ptx::highOf<T>(keys), ptx::highOf<T>(queries));
      }
    }
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      sums[h] += ptx::shflXor(sums[h], 1);
      sums[h] += ptx::shflXor(sums[h], 2);
      if (lane % 4 == 0) to[half_ * kRows + t + 8 * h] = sums[h];
    }
  }

  /// A decay of 0 has a gradient of 0, and separates later tokens from earlier ones.
  SEQPAR_DEVICE void ofGates() {
    const int t = ptx::thread();
    if (task_.dGates.data == nullptr || t >= chunk_.rows) return;
    float run = 0;
    for (int c = 0; c < kKeys; ++c) run += memory_.boundary[c];
    run = forgetting(memory_.in[kRows - 1], run);
    for (int i = 0; i < 2 * kRows; ++i) run += memory_.ends[i];
    for (int i = kRows; i-- > t;) {
      run += memory_.terms[i] + memory_.terms[kRows + i];
      if (memory_.decay[i] == 0) run = 0;
    }
    storeNumber(task_.dGates.data, task_.gateType, rowOf(task_.dGates, batch_, chunk_.first + t, head_), run);
  }

  SEQPAR_DEVICE void addSums(const Record& sums) {
    const auto from = [&](float(&c)[8][4], const float* memory) {
      eachPair(c, row_, half_ * 64, [&](int t, int n, float& x, float& y) {
        x += memory[t * kKeys + n];
        y += memory[t * kKeys + n + 1];
      });
    };
    from(dq_, sums.sumQ);
    from(dRow_, sums.sumK);
  }
  SEQPAR_DEVICE void keepSums(const Record& sums) {
    const auto to = [&](float(&c)[8][4], float* memory) {
      eachPair(c, row_, half_ * 64,
               [&](int t, int n, float x, float y) { ptx::storePair(memory + t * kKeys + n, x, y); });
    };
    to(dq_, sums.sumQ);
    to(dRow_, sums.sumK);
  }

  /// The gradients of q and k from those of scaled and normalized rows.
  SEQPAR_DEVICE void finish() {
    float *const ofQueries = memory_.ends, *const ofKeys = memory_.terms;
    sumRows(ofQueries, [&](int n, int e, float, float query) { return query * dq_[n][e]; });
    sumRows(ofKeys, [&](int n, int e, float key, float) { return key * dRow_[n][e]; });
    ptx::syncthreads();
    uint16_t *const dq = memory_.blocks, *const dk = dq + kKeyTile;
    const auto store = [&](float(&c)[8][4], uint16_t* to, const uint16_t* y, const float* norms, const float* sums,
                           float scale) {
      eachPair(c, row_, half_ * 64, [&](int t, int n, float low, float high) {
        const float along = task_.normalize && scale != 0 ? (sums[t] + sums[kRows + t]) / (scale * scale) : 0;
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(y + t * kKeyStride + n);
        storePair<T>(to + t * kKeyStride + n, norms[t] * (low - ptx::lowOf<T>(pair) * along),
                     norms[t] * (high - ptx::highOf<T>(pair) * along));
      });
    };
    store(dq_, dq, memory_.queries, memory_.qNorm, ofQueries, task_.scale);
    store(dRow_, dk, memory_.keys, memory_.kNorm, ofKeys, 1);
    ptx::syncthreads();
    storeTensor(task_.dq, batch_, chunk_, keyHead_, 0, kKeys, task_.dk, dq, kKeyStride);
    storeTensor(task_.dk_, batch_, chunk_, keyHead_, 0, kKeys, task_.dk, dk, kKeyStride);
  }

  const Task& task_;
  const int columns_, warp_, row_, half_;
  int number_, keyHead_, head_ = 0;
  int64_t batch_;
  Chunk chunk_;
  Record r_;
  DifferentiateMemory memory_;
  float dq_[8][4], dRow_[8][4], dColumn_[8][4], ofKeys_[4][4], ofScores_[4][4];
};

}  // namespace seqpar::attn::delta::half
