// What the steps of DifferentiateSm90 (differentiate_sm90.h) share: its memory and loads, sums over channels, and the
// gradients of decays and betas.
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/attn/linear/delta/half/difference.h"
#include "kernels/attn/linear/delta/half/panels_sm90.h"

namespace seqpar::attn::delta::half {

/// kTwo: two blocks of columns of values; otherwise one. kChannel: decays of channels.
template <class T, bool kTwo, bool kChannel>
class DifferenceSm90 {
 protected:
  using Memory = DifferentiateSm90Memory;
  using KeyTile = KeyPanels<kRows>;
  using StateTile = KeyPanels<Memory::kStep>;
  static constexpr int kAll = kThreadsSm90, kWarps = kAll / 32;
  static constexpr int kSteps = (kTwo ? 2 : 1) * kColumns / Memory::kStep;  ///< of states

  SEQPAR_DEVICE explicit DifferenceSm90(const Task& t)
      : task_(t),
        warp_(ptx::uniform(threadAgain() / 32)),
        row_(warp_ % 4 * kBlock),
        group_(warp_ / 4),
        channel_(group_ * warpgroup::kPanel) {
    const RecordPlace place(t, t.keyHeads);
    keyHead_ = place.head;
    number_ = place.number;
    batch_ = place.batch;
    head_ = keyHead_;
    chunk_ = t.chunks[t.first + number_];
    memory_.place(kChannel);
  }

  SEQPAR_DEVICE Record record() const { return recordOf(task_, batch_, head_, number_); }
  /// With two blocks of columns and decays of tokens, keys replace the first block before the last states are used.
  static constexpr bool kEarly = kTwo && !kChannel;
  static constexpr int kBlockBytes = kChannel ? kSquareBytes : Memory::kBlockBytes;
  SEQPAR_DEVICE KeyTile keys() const { return {memory_.keys(kEarly)}; }
  SEQPAR_DEVICE KeyTile queries() const { return {memory_.queries(kEarly)}; }
  SEQPAR_DEVICE StateTile state(int step) const { return {memory_.stages + step % 2 * Memory::kStage}; }
  SEQPAR_DEVICE StateTile dState(int step) const { return {state(step).offset + Memory::kStage / 2}; }
  SEQPAR_DEVICE SquareRows ofScores() const { return {memory_.inverse}; }
  SEQPAR_DEVICE SquareRows ofKeys() const { return {memory_.ofKeys}; }

  /// The warpgroup's channels of a tile.
  template <class Tile>
  SEQPAR_DEVICE warpgroup::Operand panel(const Tile& tile) const {
    return operand(tile.offset + group_ * Tile::kPanelBytes);
  }
  /// The same as rows.
  SEQPAR_DEVICE SquareRows rowsOfPanel(const KeyTile& tile) const {
    return {tile.offset + group_ * KeyTile::kPanelBytes};
  }
  SEQPAR_DEVICE void loadGates() {
    const int t = threadAgain();
    if (t >= kRows) return;
    const TokenGates gates(task_, batch_, chunk_, head_, !kChannel);
    memory_.beta[t] = gates.betaOf(task_, chunk_);
    if constexpr (!kChannel) memory_.tokens.decay[t] = gates.decayOf(task_, chunk_);
  }
  SEQPAR_DEVICE uint32_t full(int n) const {
    return ptx::sharedAddress(ptx::sharedMemory()) + static_cast<uint32_t>(memory_.full + 8 * n);
  }
  /// All threads.
  SEQPAR_DEVICE void placeBarriers() const {
    if (isProducer()) {
      SEQPAR_UNROLL
      for (int n = 0; n < 3; ++n) ptx::mbarrierInit(full(n), 1);
      ptx::fenceMbarrierInit();
    }
    ptx::syncthreads();
  }
  /// `number`: of the head among those that share q and k.
  SEQPAR_DEVICE void waitValues(int number) const { ptx::mbarrierWaitParity(full(kOfValues), number % 2); }
  SEQPAR_DEVICE void waitStates(int step, int number) const {
    ptx::mbarrierWaitParity(full(step % 2), (kTwo ? step / 2 : number) % 2);
  }
  static constexpr int kOfValues = 2;
  /// The thread that starts copies of record images: of a warp that loads no gates.
  SEQPAR_DEVICE static bool isProducer() { return threadAgain() == kAll - 32; }

  SEQPAR_DEVICE void startValues() const {
    const int thread = threadAgain();
    constexpr int kBlocksOfValues = kTwo ? 2 : 1;
    if (isProducer()) {
      const Record r = record();
      const auto copy = [&](int at, const uint16_t* from, int bytes) {
        ptx::cpAsyncBulkLoad(ptx::sharedMemory() + at, from, bytes, full(kOfValues));
      };
      constexpr int kTiles = kChannel ? 1 + 2 * kBlocksOfValues : kBlocksOfValues;
      ptx::mbarrierArriveExpectTx(full(kOfValues), kTiles * kSquareBytes + 8 * kRows);
      if constexpr (kChannel) {
        copy(memory_.inverse, r.inverse, kSquareBytes);
        copy(memory_.dX, r.dWritten, kBlocksOfValues * kSquareBytes);
      }
      SEQPAR_UNROLL
      for (int n = 0; n < kBlocksOfValues; ++n) {
        copy(memory_.written + n * kBlockBytes, r.values + n * kColumns * kRows, kSquareBytes);
      }
      ptx::cpAsyncBulkLoad(memory_.kNorm, r.norms, 8 * kRows, full(kOfValues));  // and qNorm, behind it
      startStates(r, 0);
      startStates(r, 1);
      if constexpr (kTwo) {
        ptx::cpAsyncBulkPrefetch(r.state + stateIndex(kColumns, 0), kKeyBytes);
        ptx::cpAsyncBulkPrefetch(r.dState + stateIndex(kColumns, 0), kKeyBytes);
      }
    }
    prefetchTensor<kKeys>({group_ == 0 ? task_.k : task_.q, batch_, chunk_, keyHead_, 0, task_.dk},
                          thread % warpgroup::kThreads);
    if constexpr (kChannel) prefetchChannelDecays(task_, batch_, chunk_, head_, thread);
    SEQPAR_UNROLL
    for (int block = 0; block < kBlocksOfValues; ++block) {
      const int at = block * kBlockBytes, first = block * kColumns;
      startTensor<kColumns, kAll>(SquareRows{memory_.dOut + at}, {task_.dOut, batch_, chunk_, head_, first, task_.dv},
                                  thread);
      if constexpr (!kChannel) {
        startTensor<kColumns, kAll>(SquareRows{memory_.dX + at}, {task_.dv_, batch_, chunk_, head_, first, task_.dv},
                                    thread);
      }
    }
    ptx::cpAsyncCommitGroup();
  }
  /// The producer starts copies of a step's states.
  SEQPAR_DEVICE void startStates(const Record& r, int step) const {
    const uint32_t barrier = full(step % 2);
    ptx::mbarrierArriveExpectTx(barrier, Memory::kStage);
    SEQPAR_UNROLL
    for (int panel = 0; panel < 2; ++panel) {
      const int at = panel * StateTile::kPanelBytes, of = stateIndex(step * Memory::kStep, panel * 64);
      ptx::cpAsyncBulkLoad(ptx::sharedMemory() + (state(step).offset + at), r.state + of, StateTile::kPanelBytes,
                           barrier);
      ptx::cpAsyncBulkLoad(ptx::sharedMemory() + (dState(step).offset + at), r.dState + of, StateTile::kPanelBytes,
                           barrier);
    }
  }
  /// Behind step `step` and a barrier: starts copies of the states of the next step but one, and of keys and queries
  /// where they replace what no later step reads.
  SEQPAR_DEVICE void startStage(int step) const {
    if (step + 2 < kSteps && isProducer()) startStates(record(), step + 2);
    constexpr int kFirst = kEarly ? kSteps - 3 : kSteps - 2;
    if (step == kFirst) startRows(keys(), task_.k);
    if (step == kFirst + 1) startRows(queries(), task_.q);
  }
  SEQPAR_DEVICE void startRows(const KeyTile& to, const Input& tensor) const {
    startTensor<kKeys, kAll>(to, {tensor, batch_, chunk_, keyHead_, 0, task_.dk}, threadAgain());
    ptx::cpAsyncCommitGroup();
  }
  /// Keys and queries times their factors.
  SEQPAR_DEVICE void loadKeys() {
    ptx::cpAsyncWaitGroup<0>();
    ptx::syncthreads();
    finite_ = ptx::syncthreadsAnd(scaleKeys());
  }
  /// Returns whether the thread's elements are finite.
  SEQPAR_DEVICE bool scaleKeys() const {
    const bool keysFinite = scaleRows(keys(), memory_.kNorm);
    return scaleRows(queries(), memory_.qNorm) && keysFinite;
  }
  /// Four threads have a row: row *= norms[t]. Elements of fp16 cannot become infinite.
  SEQPAR_DEVICE bool scaleRows(const KeyTile& rows, const float* norms) const {
    constexpr int kParts = 4, kUnits = kKeys / 8 / kParts;
    const int thread = threadAgain(), t = thread / kParts, part = thread % kParts;
    const float norm = norms[t];
    uint32_t zeros = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < kUnits; ++n) {
      uint32_t words[4];
      ptx::load(words, rows.unit(t, part + n * kParts));
      SEQPAR_UNROLL
      for (uint32_t& word : words) {
        if constexpr (!ptx::kIsBf16<T>) ptx::addZeros<T>(zeros, word);
        word = ptx::pack<T>(norm * ptx::lowOf<T>(word), norm * ptx::highOf<T>(word));
        if constexpr (ptx::kIsBf16<T>) ptx::addZeros<T>(zeros, word);
      }
      ptx::store(rows.unit(t, part + n * kParts), words);
    }
    return (zeros & 0x7fff7fffU) == 0;
  }

  SEQPAR_DEVICE void keepWarpSum(float* to, float sum) const {
    sum = sumOfWarp(sum);
    if (threadAgain() % 32 == 0) to[warp_] = sum;
  }

  /// Sums over the warpgroup's channels: add(sums, tile, element, key, query) adds terms to those of an element's row
  /// t, and store(warpgroup * kRows + t, sums) stores them.
  template <int kSums, class Add, class Store>
  SEQPAR_DEVICE void sumRows(const Add& add, const Store& store) const {
    const ptx::AccumulatorLayout layout{threadAgain() % 32};
    float sums[2][kSums] = {};
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      uint32_t key[4], query[4];
      loadLeft<true>(key, rowsOfPanel(keys()), row_, k * kBlock, layout.lane);
      loadLeft<true>(query, rowsOfPanel(queries()), row_, k * kBlock, layout.lane);
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int n = 2 * k + j / 2, h = j % 2;
        add(sums[h], n, 2 * h, ptx::lowOf<T>(key[j]), ptx::lowOf<T>(query[j]));
        add(sums[h], n, 2 * h + 1, ptx::highOf<T>(key[j]), ptx::highOf<T>(query[j]));
      }
    }
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      SEQPAR_UNROLL
      for (float& sum : sums[h]) {
        sum += ptx::shflXor(sum, 1);
        sum += ptx::shflXor(sum, 2);
      }
      if (layout.lane % 4 == 0) store(group_ * kRows + layout.row(row_, 2 * h), sums[h]);
    }
  }
  SEQPAR_DEVICE float rowSum(const float* sums, int t) const { return sums[t] + sums[kRows + t]; }

  /// A decay of 0 has a gradient of 0, and separates later tokens from earlier ones. By warp 0, two tokens per lane: a
  /// token replaces the sum of later tokens by 0, or adds its term; lanes compose these maps.
  SEQPAR_DEVICE void ofGates() const {
    const int lane = threadAgain(), t = 2 * lane;
    if (task_.dGates.data == nullptr || lane >= 32) return;
    float start = 0, ends = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < kWarps; ++n) {
      start += memory_.boundary[n];
      ends += memory_.ends[n];
    }
    start = forgetting(memory_.tokens.in[kRows - 1], start) + ends;
    const float terms[2] = {rowSum(memory_.terms, t), rowSum(memory_.terms, t + 1)};
    const bool zeros[2] = {memory_.tokens.decay[t] == 0, memory_.tokens.decay[t + 1] == 0};
    bool adds = !zeros[0] && !zeros[1];
    float sum = zeros[0] ? 0 : terms[0] + (zeros[1] ? 0 : terms[1]);
    SEQPAR_UNROLL
    for (int distance = 1; distance <= 32; distance *= 2) {
      const int step = distance < 32 ? distance : 1,
                from = lane + step;  // the last step: what follows the lane's tokens
      const float other = ptx::shfl(sum, from % 32), otherAdds = ptx::shfl(adds ? 1.0F : 0.0F, from % 32);
      if (distance == 32) {
        sum = from < 32 ? other : 0;
        adds = from >= 32 || otherAdds != 0;
      } else if (from < 32) {
        if (adds) sum += other;
        adds = adds && otherAdds != 0;
      }
    }
    float run = adds ? start + sum : sum;
    SEQPAR_UNROLL
    for (int i = 2; i-- > 0;) {
      run = zeros[i] ? 0 : run + terms[i];
      if (t + i >= chunk_.rows) continue;
      storeNumber(task_.dGates.data, task_.gateType, rowOf(task_.dGates, batch_, chunk_.first + t + i, head_), run);
    }
  }

  /// Whether D_i / beta_i, and with decays of tokens (beta_i dX_i) / beta_i, has too few digits.
  SEQPAR_DEVICE static bool isSmall(float beta) {
    return fabsf(beta) < (ptx::kIsBf16<T> ? kChannel ? 0x1p-64F : 0x1p-40F : 0x1p-6F);
  }
  /// By warps 2 and 3, a token per lane.
  SEQPAR_DEVICE void ofBetas() const {
    constexpr int kParts = kTwo ? 4 : 2;
    const int t = threadAgain() - kRows, lane = threadAgain() % 32;
    if (task_.dBeta.data == nullptr || t < 0 || t >= kRows) return;
    const float beta = memory_.beta[t];
    const bool exists = t < chunk_.rows, small = exists && isSmall(beta);
    if (exists && !small) storeBeta(t, memory_.diagonal[t] / (kChannel ? beta : beta * beta));
    if (ptx::voteAll(!small)) return;
    SEQPAR_ROLLED
    for (int n = 0; n < 32; ++n) {
      if (ptx::shfl(small ? 1.0F : 0.0F, n) == 0) continue;
      const float gradient =
          smallBetaGradient<T, kParts, kChannel>({task_, batch_, chunk_, number_, head_, t - lane + n});
      if (lane == n) storeBeta(t, gradient);
    }
  }
  SEQPAR_DEVICE void storeBeta(int t, float gradient) const {
    storeNumber(task_.dBeta.data, task_.betaType, rowOf(task_.dBeta, batch_, chunk_.first + t, head_), gradient);
  }

  const Task& task_;
  const int warp_, row_, group_, channel_;
  int number_, keyHead_, head_;
  int64_t batch_;
  Chunk chunk_;
  bool finite_ = true;
  Memory memory_;
};

}  // namespace seqpar::attn::delta::half
