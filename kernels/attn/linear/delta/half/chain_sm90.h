// The recurrences over the chunks of a window for 16-bit tensors on sm_90a with wgmma: AdvanceSm90 for states and
// outputs, RetreatSm90 for the states' gradients.
//
// Work      a CTA has one (slice of 64 columns, head, batch entry) of the state, or of the product of the chunks'
//           matrices, which starts as the identity and has no values: columns never mix
// Roles     a warpgroup, the chain, has the state; two or four warps, the helper, copy to memory what the chain shares,
//           and load gradients of outputs; one thread of the last warp, the producer, loads stages with bulk copies.
//           With seven warps, each thread can have 255 registers; with nine, 168, and dOut is loaded earlier
// Tiles     chunks of 64 tokens x 128 channels. The state is fp32 in registers, as its transpose: accumulators of one
//           product are, rounded, the left operand of the next, and products add to the decayed state in place
// Smem      ChainSm90Memory, 226 KiB: three stages; the state and the values rounded to 16 bits, for repairs; outputs.
//           States and values that a record keeps replace operands of a chunk's first product in its stage
// Barriers  mbarriers of a stage: `full` by the bulk copies, and in RetreatSm90 by the helper that loads dOut; `shared`
//           by each warp of the chain when its rows of the rounded state and values are in the stage; `empty` by each
//           warp of the chain, and by the helper when it has read them. Named, ChainSm90Barrier: the chain arrives when
//           it has stored outputs, the helper when it has read them
// Overlap   between a chunk's two products on the critical path, the chain checks and decays the state while the first
//           runs, and shares its operands and starts the next chunk while the second does. A helper that keeps states
//           may be three chunks behind. The next kernel may start when all CTAs of AdvanceSm90 have
// Infinite  a factor of 0 must discard an infinite operand: operands of 16 bits are checked, and if one is not finite,
//           sums that are not finite either are computed again
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/arch/wgmma_subtract.h"
#include "kernels/attn/linear/delta/half/panels_sm90.h"

namespace seqpar::attn::delta::half {

/// Named barriers; __syncthreads() has 0.
enum ChainSm90Barrier {
  kSm90Multiplied = 1,  ///< the chain: the first product of a chunk has ended in all of its warps
  kSm90OutRounded = 2,  ///< the chain to the helper: its outputs are in ChainSm90Memory::kOut
  kSm90Read = 3,        ///< the helper to the chain: they may be replaced
};

struct ChainSm90Stage {
  KeyPanels<kRows> w, kOut, qIn;
  SquareRows scores;
  SquareRows values;  ///< AdvanceSm90: U, transposed; RetreatSm90: dOut
  Floats total;
};

/// kHelpers: threads of the helper.
template <class T, int kHelpers>
class ChainSm90 {
 protected:
  using Memory = ChainSm90Memory;
  using StateTile = KeyPanels<kColumns>;
  static constexpr int kBoth = warpgroup::kThreads + kHelpers;  ///< threads
  static constexpr int kChainWarps = warpgroup::kThreads / 32;
  static constexpr int kTiles = kKeys / 8;

  SEQPAR_DEVICE explicit ChainSm90(const Task& t)
      : ChainSm90(t, ptx::block(), slicesOf(t, kColumns), transitionSlicesOf(t, kColumns)) {}
  /// `index` of the CTA's slice among those of all heads, which have `ofStates` and `ofTransitions` slices.
  SEQPAR_DEVICE ChainSm90(const Task& t, int index, int ofStates, int ofTransitions)
      : task_(t), warp_(ptx::uniform(ptx::thread() / 32)), row_(warp_ % 4 * kBlock), lane_(ptx::thread() % 32) {
    const int slices = ofStates + ofTransitions, slice = index % slices;
    index /= slices;
    head_ = index % t.heads;
    batch_ = index / t.heads;
    ofState_ = slice < ofStates;
    column_ = (ofState_ ? slice : slice - ofStates) * kColumns;
    width_ = ofState_ ? t.dv : t.dk;
  }

  SEQPAR_DEVICE bool isChain() const { return warp_ < 4; }
  SEQPAR_DEVICE bool isHelper() const { return !isChain() && warp_ < kBoth / 32; }
  SEQPAR_DEVICE bool isProducer() const { return ptx::thread() == kBoth; }
  /// Calls the function of the thread's role with each running number i of a chunk; chain() has them all. `helps`:
  /// whether the CTA's helper has a task.
  template <class Start, class Help, class ChainOf>
  SEQPAR_DEVICE void runRoles(bool helps, const Start& start, const Help& help, const ChainOf& chain) {
    if (isChain()) {
      loadState(before(), index());
      chain();
      storeState(after(), index());
    } else if (isHelper()) {
      for (int i = 0; helps && i < task_.count; ++i) help(i);
    } else {
      for (int i = 0; isProducer() && i < task_.count; ++i) start(i);
    }
  }
  SEQPAR_DEVICE bool keeps() const { return task_.keepsStates && ofState_; }
  SEQPAR_DEVICE Record record(int n) const { return recordOf(task_, batch_, head_, n); }
  SEQPAR_DEVICE const Chunk& chunk(int n) const { return task_.chunks[task_.first + n]; }
  SEQPAR_DEVICE const float* before() const { return ofState_ ? task_.before : task_.transition; }
  SEQPAR_DEVICE float* after() const { return ofState_ ? task_.states : task_.transition; }
  SEQPAR_DEVICE int64_t index() const { return batch_ * task_.heads + head_; }
  SEQPAR_DEVICE int64_t sequenceIndex(const Chunk& chunk) const { return chunk.sequence * task_.heads + head_; }
  SEQPAR_DEVICE StateTile roundedState() const { return {Memory::kState}; }
  SEQPAR_DEVICE SquareRows roundedValues() const { return {Memory::kValues}; }

  // Stages by running number i of a chunk.
  SEQPAR_DEVICE static ChainSm90Stage stage(int i) {
    const int at = i % Memory::kStages * Memory::kStage;
    return {{at},
            {at + kKeyBytes},
            {at + 2 * kKeyBytes},
            {at + 3 * kKeyBytes},
            {at + 3 * kKeyBytes + kSquareBytes},
            {Memory::kTotals + i % Memory::kStages * 4 * kKeys}};
  }
  SEQPAR_DEVICE static uint32_t full(int i) {
    return ptx::sharedAddress(ptx::sharedMemory()) + static_cast<uint32_t>(Memory::kBarriers + i % Memory::kStages * 8);
  }
  SEQPAR_DEVICE static uint32_t empty(int i) { return full(i) + 8 * Memory::kStages; }
  SEQPAR_DEVICE static uint32_t shared(int i) { return empty(i) + 8 * Memory::kStages; }
  /// `writers`: threads that arrive on `full` in addition to the producer; `readers`: arrivals on `empty` in addition
  /// to the chain's. All threads.
  SEQPAR_DEVICE void placeBarriers(int writers, int readers) const {
    if (isProducer()) {
      for (int i = 0; i < Memory::kStages; ++i) {
        ptx::mbarrierInit(full(i), 1 + writers);
        ptx::mbarrierInit(empty(i), kChainWarps + readers);
        ptx::mbarrierInit(shared(i), kChainWarps);
      }
      ptx::fenceMbarrierInit();
    }
    ptx::syncthreads();
  }
  SEQPAR_DEVICE static void waitFull(int i) { ptx::mbarrierWaitParity(full(i), i / Memory::kStages % 2); }
  SEQPAR_DEVICE static void waitEmpty(int i) {
    if (i >= Memory::kStages) ptx::mbarrierWaitParity(empty(i), (i / Memory::kStages + 1) % 2);
  }
  SEQPAR_DEVICE void arriveByWarp(uint32_t barrier) const {
    ptx::syncwarp();
    if (lane_ == 0) ptx::mbarrierArrive(barrier);
  }
  SEQPAR_DEVICE void release(int i) const { arriveByWarp(empty(i)); }
  SEQPAR_DEVICE SquareRows outputs() const { return {Memory::kOut}; }
  /// Rounds the outputs of chunk i, a transpose in the chain, for the warps that copy them.
  SEQPAR_DEVICE void putOut(int i, const float (&out)[kRows / 8][4]) const {
    if (i > 0) ptx::barrierSync<kSm90Read, kBoth>();
    const int inEight = lane_ % 8, odd = lane_ / 8 % 2, upper = lane_ / 16;
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      uint32_t words[4];
      roundTiles<T>(words, out[2 * k], out[2 * k + 1]);
      ptx::stmatrixX4Trans(outputs().address(k * kBlock + upper * 8, inEight, 2 * row_, odd), words);
    }
    ptx::barrierArrive<kSm90OutRounded, kBoth>();
    release(i);
  }
  /// One thread: stores the outputs as a box of a tensor map, and returns when they may be replaced. Ordinary stores
  /// take as long as the chain, which would wait for them.
  SEQPAR_DEVICE void storeBox(const CUtensorMap& map, int token) const {
    warpgroup::fenceProxyAsync();
    ptx::tmaStore(map, ptx::sharedAddress(ptx::sharedMemory() + outputs().offset), column_, head_, token,
                  static_cast<int>(batch_));
    ptx::cpAsyncBulkCommitGroup();
    ptx::cpAsyncBulkWaitGroupRead<0>();
  }
  /// Chunk::begins of chunk i, which the producer stores before it arrives on `full`. If the chain loaded it from
  /// device memory, all instructions that use the state would wait for it, because a branch loads states.
  SEQPAR_DEVICE static int& begins(int i) {
    return *reinterpret_cast<int*>(ptx::sharedMemory() + Memory::kBegins + 4 * (i % Memory::kStages));
  }
  template <int kBytes>
  SEQPAR_DEVICE static void load(int i, int to, const void* from) {
    ptx::cpAsyncBulkLoad(ptx::sharedMemory() + to, from, kBytes, full(i));
  }

  /// Calls each(channel, column of the state, element) for the thread's elements.
  template <class Each>
  SEQPAR_DEVICE void eachElement(const Each& each) {
    const ptx::AccumulatorLayout layout{lane_};
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) each(layout.column(8 * n, e), layout.row(column_ + row_, e), state_[n][e]);
    }
  }
  /// `states`: of all heads, or zeros; `index` of the head.
  SEQPAR_DEVICE void loadState(const float* states, int64_t index) {
    ptx::syncwarp();  // a branch: selects would delay chunks that continue a state
    const float* const from = states == nullptr ? nullptr : states + index * task_.dk * width_;
    eachElement([&](int c, int v, float& x) {
      x = from != nullptr && c < task_.dk && v < width_ ? from[int64_t{c} * width_ + v] : 0;
    });
  }
  SEQPAR_DEVICE void storeState(float* states, int64_t index) {
    float* const to = states + index * task_.dk * width_;
    eachElement([&](int c, int v, float x) {
      if (c < task_.dk && v < width_) to[int64_t{c} * width_ + v] = x;
    });
  }
  SEQPAR_DEVICE void roundState(uint32_t (&a)[kKeys / kBlock][4]) const {
    SEQPAR_UNROLL
    for (int k = 0; k < kKeys / kBlock; ++k) roundTiles<T>(a[k], state_[2 * k], state_[2 * k + 1]);
  }
  /// Whether products of the rounded state need no repair: fp16 operands are clamped.
  SEQPAR_DEVICE bool isExact(const uint32_t (&a)[kKeys / kBlock][4]) const {
    if constexpr (ptx::kIsBf16<T>) return allFinite<T>(a);
    return allFinite(state_);
  }
  /// Stores the warp's 16 rows of operands, 16 terms each.
  template <int kCount, class Tile>
  SEQPAR_DEVICE void storeOperands(const Tile& to, const uint32_t (&a)[kCount][4]) const {
    SEQPAR_UNROLL
    for (int k = 0; k < kCount; ++k) storeLeft(to, row_, k * kBlock, a[k], lane_);
    ptx::syncwarp();
  }
  /// Stores the rounded state and values of chunk i in its stage, in place of operands of the chain's first product.
  SEQPAR_DEVICE void share(int i, const StateTile& state, const uint32_t (&a)[kKeys / kBlock][4],
                           const SquareRows& values, const uint32_t (&d)[kRows / kBlock][4]) const {
    ptx::barrierSync<kSm90Multiplied, warpgroup::kThreads>();
    storeOperands(state, a);
    storeOperands(values, d);
    arriveByWarp(shared(i));
  }
  /// One thread: waits until the chain has shared what it stores for chunk i, and starts the copies of it to arrays of
  /// a record. The fence is here because it would delay the chain.
  SEQPAR_DEVICE void startKeeping(int i, uint16_t* states, const StateTile& state, uint16_t* values,
                                  const SquareRows& written) const {
    ptx::mbarrierWaitParity(shared(i), i / Memory::kStages % 2);
    warpgroup::fenceProxyAsync();
    ptx::cpAsyncBulkStore(states + int64_t{column_} * kKeys, ptx::sharedMemory() + state.offset, kKeyBytes);
    ptx::cpAsyncBulkStore(values + int64_t{column_} * kRows, ptx::sharedMemory() + written.offset, kSquareBytes);
    ptx::cpAsyncBulkCommitGroup();
  }
  /// One thread: waits until the latest copies have read, then frees the stage of chunk i, or ends the last chunk.
  SEQPAR_DEVICE void finishKeeping(int i) const {
    ptx::cpAsyncBulkWaitGroupRead<0>();
    ptx::mbarrierArrive(empty(i));
    if (i + 1 == task_.count) ptx::cpAsyncBulkWaitGroup();
  }
  SEQPAR_DEVICE static bool isKeeper() { return ptx::thread() == warpgroup::kThreads; }

  /// state = total * state. A total of 0 forgets.
  SEQPAR_DEVICE void decayState(const float* total, bool exact) {
    exact ? decayState<true>(total) : decayState<false>(total);
  }
  template <bool kExact>
  SEQPAR_DEVICE void decayState(const float* total) {
    const ptx::AccumulatorLayout layout{lane_};
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      float low, high;
      ptx::loadPair(total + 8 * n + layout.column(), low, high);
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float decay = e % 2 == 0 ? low : high;
        state_[n][e] = kExact ? decay * state_[n][e] : forgetting(decay, state_[n][e]);
      }
    }
  }
  using Elements = float[4 * kTiles];  ///< of the state, in local memory
  SEQPAR_DEVICE void copyState(Elements& to) const {
    SEQPAR_UNROLL
    for (int i = 0; i < 4 * kTiles; ++i) to[i] = state_[i / 4][i % 4];
  }
  /// Computes elements of the state that are not finite again: those before products, and term(channel, column).
  template <class Term>
  SEQPAR_DEVICE void recomputeState(const Elements& before, const Term& term) {
    const ptx::AccumulatorLayout layout{lane_};
    const int v = layout.row(row_), c = layout.column();
    SEQPAR_ROLLED
    for (int i = 0; i < 4 * kTiles; ++i) {
      const float value = before[i] + term(i / 4 * 8 + c + i % 2, v + i / 2 % 2 * 8);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) {
          if (4 * n + e == i && !(state_[n][e] - state_[n][e] == 0)) state_[n][e] = value;
        }
      }
    }
  }

  const Task& task_;
  const int warp_, row_;  ///< row_: the warp's first in the slice's transpose, or its first token
  int lane_;              ///< read again for each chunk: keeps fewer addresses
  int head_, column_, width_;
  int64_t batch_;
  bool ofState_;
  float state_[kTiles][4];      ///< of the transpose
  float values_[kRows / 8][4];  ///< of the transpose of D or dD
};

}  // namespace seqpar::attn::delta::half
