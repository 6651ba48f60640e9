// The last step of the backward for 16-bit tensors: gradients of a chunk's tensors, from the states and gradients that
// Advance and Retreat have kept.
//
// Work      a CTA of 512 threads has one (chunk, head of q and k, batch entry), for all heads that share q and k
// Roles     16 warps alike: each has 16 tokens of all gradients in registers: a quarter of the channels, and of the
//           columns of both kinds of scores
// Tiles     chunks of 64 tokens x 128 channels; values in blocks of 64 columns
// Smem      DifferentiateMemory
// Barriers  __syncthreads() between steps
// Overlap   cp.async loads two blocks of values ahead; with kWgmma, bulk copies load those of records, and products of
//           a block run while dX is rounded. No overlap with other kernels
//
// With dX = T^T dD and E = dX D^T the gradient of beta_i is E_ii / beta_i, because T = (I + L)^-1 gives dL = -strict(E)
// and D_i / beta_i is the difference that token i writes; tokens whose beta is almost 0 compute the difference. With
// decays of channels it is dX_i v_i + k_i dRow_i / beta_i, without the rounding of D_i: dRow has gradients of the key
// as a reader of states and of other tokens' values.
#pragma once

#include "kernels/attn/linear/delta/half/difference.h"

namespace seqpar::attn::delta::half {

struct HalfBlockDecays;

/// kChannel: decays of channels. kWgmma: sm_90a, products of states by warpgroups (differentiate_states_sm90.h).
template <class T, bool kChannel, bool kWgmma = false>
class Differentiate {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Differentiate(task).steps(); }

 private:
  static constexpr int kAll = kDifferentiateThreads, kQuarters = DifferentiateMemory::kQuarters;
  static constexpr int kRunStride = DifferentiateMemory::kRunStride;
  /// Whether operands with decays of channels are fp16 where those are mild (differentiate_decays.h).
  static constexpr bool kMayBeMild = kChannel && ptx::kIsBf16<T>;

  SEQPAR_DEVICE explicit Differentiate(const Task& t)
      : task_(t),
        columns_(paddedColumns(t)),
        warp_(ptx::uniform(threadAgain() / 32)),
        row_(warp_ % 4 * kBlock),
        quarter_(warp_ / 4),
        channel_(quarter_ * 32) {
    const RecordPlace place(t, t.keyHeads);
    keyHead_ = place.head;
    number_ = place.number;
    batch_ = place.batch;
    chunk_ = t.chunks[t.first + number_];
    memory_.place(kChannel);
  }

  SEQPAR_DEVICE void steps() {
    const int group = headsOfKey(task_);
    const Record sums = recordOf(task_, batch_, keyHead_ * group, number_);
    if constexpr (kWgmma) placeBarriers();
    for (int i = 0; i < group; ++i) {
      head_ = keyHead_ * group + i;
      const TokenGates gates(task_, batch_, chunk_, head_, !kChannel);
      const Norms norms = loadNorms();
      if (i == 0) startKeys();
      if constexpr (!kWgmma) startImage<kSquareBytes, kAll>(memory_.inverse, record().inverse, threadAgain());
      startBlock(0);
      startBlock(kColumns);
      if constexpr (kChannel) {
        prefetchChannelDecays(task_, batch_, chunk_, head_, threadAgain());
        prefetchTensor<kKeys>({task_.v, batch_, chunk_, head_, 0, task_.dv}, threadAgain());
      }
      ValuePairs values;
      if constexpr (kWgmma) loadValues(values, 0);
      storeGates(gates);
      if (i == 0) {
        storeNorms(norms);
        loadKeys();
      }
      if constexpr (!kChannel) {
        ptx::syncthreads();
        decayWithinBlocks(memory_.tokens);
      }
      throughStates(values);
      if constexpr (kChannel) {
        throughChannels();
        ofChannelGates();
      } else {
        throughScores();
        ofGates();
      }
      if (i > 0) addSums(sums);
      if (i + 1 < group) keepSums(sums);
      if constexpr (kWgmma) fenceStages();
      ptx::syncthreads();
    }
    finish();
  }

  SEQPAR_DEVICE Record record() const { return recordOf(task_, batch_, head_, number_); }
  SEQPAR_DEVICE KeyRows keys() const { return {memory_.keys}; }
  SEQPAR_DEVICE KeyRows queries() const { return {memory_.queries}; }
  SEQPAR_DEVICE SquareRows ofScores() const { return {memory_.dX}; }     ///< gradients of scores
  SEQPAR_DEVICE SquareRows ofKeys() const { return {memory_.dValues}; }  ///< and of those of keys

  SEQPAR_DEVICE void storeGates(const TokenGates& gates) {
    const int t = threadAgain();
    if (t >= kRows) return;
    memory_.beta[t] = gates.betaOf(task_, chunk_);
    if constexpr (!kChannel) memory_.tokens.decay[t] = gates.decayOf(task_, chunk_);
    memory_.betas[t] = 0;
  }

  SEQPAR_DEVICE void startKeys() {
    startTensor<kKeys, kAll>(keys(), {task_.k, batch_, chunk_, keyHead_, 0, task_.dk}, threadAgain());
    startTensor<kKeys, kAll>(queries(), {task_.q, batch_, chunk_, keyHead_, 0, task_.dk}, threadAgain());
    ptx::cpAsyncCommitGroup();
  }
  /// Keys and queries with their lengths and the scale.
  SEQPAR_DEVICE void loadKeys() {
    ptx::cpAsyncWaitGroup<2>();
    ptx::syncthreads();
    Magnitude magnitude;
    scaleRows<T, kAll / kRows, kMayBeMild>(keys(), memory_.kNorm, task_.normalize, magnitude);
    scaleRows<T, kAll / kRows, kMayBeMild>(queries(), memory_.qNorm, task_.normalize || !kChannel, magnitude);
    if constexpr (kMayBeMild) {
      const uint32_t most = ptx::reduxMax(magnitude.bits());
      if (threadAgain() % 32 == 0) memory_.ofRows[warp_] = static_cast<int>(most);
    }
  }
  /// The factor of queries in `queries`. With decays of channels their gradients and those of scores have it instead.
  SEQPAR_DEVICE float queryScale() const { return kChannel ? 1 : task_.scale; }
  /// The factors of rows, in flight.
  struct Norms {
    float ofKeys = 0, ofQueries = 0;
  };
  SEQPAR_DEVICE Norms loadNorms() const {
    const int t = threadAgain();
    const auto* const norms = reinterpret_cast<const uint32_t*>(record().norms + t);
    uint32_t ofKeys = 0, ofQueries = 0;
    ptx::loadGlobalIf(ofKeys, norms, t < kRows);
    ptx::loadGlobalIf(ofQueries, norms + kRows, t < kRows);
    return {asFloat(ofKeys), asFloat(ofQueries)};
  }
  SEQPAR_DEVICE void storeNorms(const Norms& norms) const {
    const int t = threadAgain();
    if (t >= kRows) return;
    memory_.kNorm[t] = norms.ofKeys;
    memory_.qNorm[t] = kChannel && task_.scale != 0 ? norms.ofQueries / task_.scale : norms.ofQueries;
  }

  struct Stage {
    SquareRows dWritten, written, dOut;  ///< [kColumns][kRows], [kColumns][kRows], [kRows][kColumns]
    std::conditional_t<kWgmma, KeyPanels<kColumns>, KeyRows> state, dState;  ///< [kColumns][kKeys]
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
      const int thread = threadAgain();
      if constexpr (kWgmma) {
        startImages(first, to);
      } else {
        const Record r = record();
        startImage<kSquareBytes, kAll>(to.dWritten.offset, r.dWritten + int64_t{first} * kRows, thread);
        startImage<kSquareBytes, kAll>(to.written.offset, r.values + int64_t{first} * kRows, thread);
        startStates<kAll>(to.state, r.state + int64_t{first} * kKeys, thread);
        startStates<kAll>(to.dState, r.dState + int64_t{first} * kKeys, thread);
      }
      startTensor<kColumns, kAll>(to.dOut, {task_.dOut, batch_, chunk_, head_, first, task_.dv}, thread);
    }
    ptx::cpAsyncCommitGroup();
  }

  template <int kTiles>
  SEQPAR_DEVICE static void clear(float (&c)[kTiles][4]) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
  }

  // Products with states, differentiate_states.h:
  using ValuePairs = uint32_t[2][2];  ///< of a thread's pairs of dX
  SEQPAR_DEVICE void throughStates(ValuePairs& values);
  SEQPAR_DEVICE void throughColumns(int first, const Stage& s, float (&boundary)[2]);
  SEQPAR_DEVICE void addBoundary(float (&sums)[2], const Stage& s, int lane) const;
  SEQPAR_DEVICE void ofValues(const SquareRows& dWritten, int first);
  SEQPAR_DEVICE void repairValues(float (&c)[2][4], const SquareRows& dWritten) const;
  SEQPAR_DEVICE void storeValues(float (&c)[2][4], const ValuePairs& values, int first);
  SEQPAR_DEVICE static bool hasPairs(const TensorRows& rows) {
    return rows.columns % 2 == 0 &&
           (reinterpret_cast<uintptr_t>(rows.data) | static_cast<uintptr_t>(rows.stride * 2)) % sizeof(uint32_t) == 0;
  }
  SEQPAR_DEVICE void loadValues(ValuePairs& values, int first) const;  ///< in flight
  SEQPAR_DEVICE void finishValues(ValuePairs& values, int first) const;
  SEQPAR_DEVICE void sumValues(const ValuePairs& values, const float (&dX)[2][4], int first);
  SEQPAR_DEVICE void smallBetas(int first, const Stage& s);
  // With kWgmma, differentiate_states_sm90.h:
  SEQPAR_DEVICE uint32_t full(int stage) const;
  SEQPAR_DEVICE void placeBarriers() const;
  SEQPAR_DEVICE void fenceStages() const;
  SEQPAR_DEVICE void startImages(int first, const Stage& to) const;
  SEQPAR_DEVICE void throughColumnsSm90(int first, const Stage& s, ValuePairs& values, float (&boundary)[2]);

  static constexpr int kHalves = DifferentiateMemory::kHalves;
  static_assert(kAll / 32 / kHalves * kBlock == kKeys);

  /// Whether D_i / beta_i has too few digits.
  SEQPAR_DEVICE bool isSmall(int t) const { return fabsf(memory_.beta[t]) < (ptx::kIsBf16<T> ? 0x1p-64F : 0x1p-6F); }

  template <class Within, class Before>
  SEQPAR_DEVICE void storeScores(const Within& within, const Before& before);
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
  SEQPAR_DEVICE static void add(float (&c)[4][4], const float (&part)[4][4]) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) c[n][e] += part[n][e];
    }
  }
  /// Then dRow_ has the gradients of keys.
  SEQPAR_DEVICE void addColumns() { add(dRow_, dColumn_); }

  /// part = a b for the warp's rows and channels, terms first ... last - 1; kLeft: a's terms are in rows of memory.
  template <class Element, bool kLeft>
  SEQPAR_DEVICE void multiply(float (&part)[4][4], const SquareRows& a, const KeyRows& b, int first, int last) const;
  SEQPAR_DEVICE void throughScores();
  /// The same with decays of channels.
  SEQPAR_DEVICE void throughChannels();
  struct Scales {
    bool mild;                 ///< whether operands are fp16
    float rows, scores, down;  ///< powers of 2 of operands, and that of products: 1 / (rows * scores)
  };
  SEQPAR_DEVICE void shareMagnitudes();
  SEQPAR_DEVICE Scales findScales() const;
  SEQPAR_DEVICE void throughAnyChannels(HalfBlockDecays& decays);
  template <bool kMild>
  SEQPAR_DEVICE void decayChannels(HalfBlockDecays& decays, float up);
  template <class Score>
  SEQPAR_DEVICE void storeChannelScores(float up);
  template <class Finish>
  SEQPAR_DEVICE void storeTerms(const Finish& finish);
  // Mild decays (differentiate_mild.h):
  SEQPAR_DEVICE void throughMildChannels(HalfBlockDecays& decays, const Scales& scales);
  SEQPAR_DEVICE void decayBlock(float (&c)[4][4], int block, int lane) const;
  SEQPAR_DEVICE void throughMildRows(const Scales& scales);
  SEQPAR_DEVICE void throughMildColumns(const Scales& scales);
  /// Calls each(n, e, pair) for the thread's pairs of the warp's rows and channels of a tile: those of elements [n][e]
  /// and [n][e + 1].
  template <class Each>
  SEQPAR_DEVICE void eachKey(const KeyRows& rows, const Each& each) const {
    SEQPAR_UNROLL
    for (int k = 0; k < 2; ++k) {
      uint32_t words[4];
      loadLeft<true>(words, rows, row_, channel_ + k * kBlock);
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) each(2 * k + j / 2, j % 2 * 2, words[j]);
    }
  }
  /// The same with pairs of keys and queries.
  template <class Each>
  SEQPAR_DEVICE void eachKeyAndQuery(const Each& each) const {
    SEQPAR_UNROLL
    for (int k = 0; k < 2; ++k) {
      uint32_t key[4], query[4];
      loadLeft<true>(key, keys(), row_, channel_ + k * kBlock);
      loadLeft<true>(query, queries(), row_, channel_ + k * kBlock);
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) each(2 * k + j / 2, j % 2 * 2, key[j], query[j]);
    }
  }
  /// Calls each(t, c, n, e) for the warp's pairs of channels c, c + 1: elements [n][e] and [n][e + 1].
  template <class Each>
  SEQPAR_DEVICE void eachChannelPair(const Each& each) const {
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    const int t = layout.row(row_), first = layout.column(channel_);
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      each(t, first + 8 * n, n, 0);
      each(t + 8, first + 8 * n, n, 2);
    }
  }
  SEQPAR_DEVICE void decayBefore();
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
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    const int t = layout.row(row_);
    float sums[2] = {};
    eachKeyAndQuery([&](int n, int e, uint32_t key, uint32_t query) {
      sums[e / 2] += term(n, e, ptx::lowOf<T>(key), ptx::lowOf<T>(query)) +
                     term(n, e + 1, ptx::highOf<T>(key), ptx::highOf<T>(query));
    });
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
  int phases_ = 0;  ///< with kWgmma: bit i is the parity of the stage's next phase
  int64_t batch_;
  Chunk chunk_;
  DifferentiateMemory memory_;
  float dq_[4][4], dRow_[4][4], dColumn_[4][4], ofKeys_[2][4], ofScores_[2][4];
};

}  // namespace seqpar::attn::delta::half
