// The recurrences over the chunks of a window for 16-bit tensors: Advance for states and outputs, Retreat for the
// states' gradients.
//
// Work      a CTA has one (slice of 16 kGroups columns, head, batch entry) of the state, or of the product of the
//           chunks' matrices, which starts as the identity and has no values: columns never mix
// Roles     the chain: kParts warps have 16 columns of the state, each a part of its channels and of a chunk's tokens.
//           Four helper warps load stages with cp.async, and compute a chunk's outputs or copy data that later steps
//           read
// Tiles     chunks of 64 tokens x 128 channels. The state is fp32 in registers, as its transpose: a warp's accumulators
//           are the next product's left operand
// Smem      ChainMemory: three stages of 64.5 KiB; the state and the values rounded to 16 bits; the helpers' outputs
// Barriers  __syncthreads() at each chunk: its stage is loaded, and the stage before it is free. Named, ChainBarrier:
//           the chain arrives when it has stored the rounded state, and the values; helpers wait. With several parts,
//           the warps of a group wait for each other after both
// Overlap   the chain's update of the state runs concurrently with the helpers' work on the same chunk. No overlap with
//           other kernels
#pragma once

#include "kernels/attn/linear/delta/half/swizzled.h"

namespace seqpar::attn::delta::half {

/// Named barriers; __syncthreads() has 0.
enum ChainBarrier {
  kStateRounded = 1,   ///< the chain to helpers: the rounded state of a chunk is in ChainMemory::state
  kValuesRounded = 2,  ///< the chain to helpers: its values are in ChainMemory::values, or in place of U
  kGroupRounded = 3,   ///< + group: all parts of the group's rounded state, then of its values, are stored
};

/// Shared memory of Advance and Retreat.
struct ChainStage {
  KeyPanels<kRows> w, kOut, qIn;
  SquareRows scores;
  SquareRows values;  ///< Advance: U, transposed, then D in its place; Retreat: dOut
  Floats total;
};
SEQPAR_DEVICE ChainStage chainStage(int n) {
  const int at = n % kChainStages * kChainStage;
  return {{at},
          {at + kKeyBytes},
          {at + 2 * kKeyBytes},
          {at + 3 * kKeyBytes},
          {at + 3 * kKeyBytes + kSquareBytes},
          {at + 3 * kKeyBytes + 2 * kSquareBytes}};
}
struct ChainMemory {
  static constexpr int kBehind = kChainStages * kChainStage;
  KeyRows state{kBehind};                                  ///< [columns][kKeys]
  SquareRows values{kBehind + kKeyBytes};                  ///< [columns][kRows]: dD
  SquareRows outputs{kBehind + kKeyBytes + kSquareBytes};  ///< [kRows][columns]
};

template <class T, int kGroups>
class Chain {
 protected:
  static constexpr int kWidth = kGroups * kBlock;  ///< columns of a CTA
  static constexpr int kParts = chainParts(kWidth), kChainWarps = kParts * kGroups;
  static constexpr int kAll = kChainWarps * 32 + kHelpers;                  ///< threads
  static constexpr int kOwn = kKeys / kParts, kOwnTokens = kRows / kParts;  ///< channels and tokens of a warp

  SEQPAR_DEVICE explicit Chain(const Task& t)
      : task_(t),
        columns_(paddedColumns(t)),
        warp_(ptx::uniform(ptx::thread() / 32)),
        helper_(ptx::thread() - kChainWarps * 32),
        lane_(ptx::thread() % 32),
        memory_{} {
    const int ofStates = slicesOf(t, kWidth);
    const int slices = ofStates + transitionSlicesOf(t, kWidth);
    int index = ptx::block();
    const int slice = index % slices;
    index /= slices;
    head_ = index % t.heads;
    batch_ = index / t.heads;
    ofState_ = slice < ofStates;
    column_ = (ofState_ ? slice : slice - ofStates) * kWidth;
    width_ = ofState_ ? t.dv : t.dk;
  }

  SEQPAR_DEVICE bool inChain() const { return warp_ < kChainWarps; }
  /// The warp's first row of the slice's transpose, its first column there, and its first token.
  SEQPAR_DEVICE int row() const { return (kParts == 1 ? warp_ : warp_ % kGroups) * kBlock; }
  SEQPAR_DEVICE int firstChannel() const { return kParts == 1 ? 0 : warp_ / kGroups * kOwn; }
  SEQPAR_DEVICE int firstToken() const { return kParts == 1 ? 0 : warp_ / kGroups * kOwnTokens; }
  SEQPAR_DEVICE void syncGroup() const { ptx::barrierSync(kGroupRounded + warp_ % kGroups, 32 * kParts); }
  SEQPAR_DEVICE Record record(int n) const { return recordOf(task_, batch_, head_, n); }
  SEQPAR_DEVICE Chunk chunk(int n) const { return task_.chunks[task_.first + n]; }
  SEQPAR_DEVICE const float* before() const { return ofState_ ? task_.before : task_.transition; }
  SEQPAR_DEVICE float* after() const { return ofState_ ? task_.states : task_.transition; }
  SEQPAR_DEVICE int64_t index() const { return batch_ * task_.heads + head_; }
  SEQPAR_DEVICE int64_t sequenceIndex(const Chunk& chunk) const { return chunk.sequence * task_.heads + head_; }

  SEQPAR_DEVICE bool keeps() const { return task_.keepsStates && ofState_; }

  /// Calls each(channel, column of the state, element) for the warp's elements.
  template <class Each>
  SEQPAR_DEVICE void eachElement(const Each& each) {
    const ptx::AccumulatorLayout layout{ptx::thread() % 32};
    const int first = column_ + row(), channel = firstChannel();
    SEQPAR_UNROLL
    for (int n = 0; n < kOwn / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) each(layout.column(channel + 8 * n, e), layout.row(first, e), state_[n][e]);
    }
  }
  /// `states`: of all heads, or zeros; `index` of the head.
  SEQPAR_DEVICE void loadState(const float* states, int64_t index) {
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
  /// Stores the rounded state for the helpers, and has the group's as operands.
  SEQPAR_DEVICE void roundState(uint32_t (&a)[kKeys / kBlock][4]) {
    SEQPAR_UNROLL
    for (int k = 0; k < kOwn / kBlock; ++k) {
      roundTiles<T>(a[k], state_[2 * k], state_[2 * k + 1]);
      storeLeft(memory_.state, row(), firstChannel() + k * kBlock, a[k], lane_);
    }
    ptx::barrierArrive<kStateRounded, kAll>();
    loadParts(a, memory_.state);
  }
  /// The same for the values, of which the warp has its tokens.
  SEQPAR_DEVICE void shareValues(const SquareRows& values, uint32_t (&d)[kRows / kBlock][4]) {
    SEQPAR_UNROLL
    for (int k = 0; k < kOwnTokens / kBlock; ++k) {
      storeLeft(values, row(), firstToken() + k * kBlock, d[k], lane_);
    }
    ptx::barrierArrive<kValuesRounded, kAll>();
    loadParts(d, values);
  }
  /// Loads what the group's warps have stored: their own registers, if there is one warp.
  template <int kTiles, class Tile>
  SEQPAR_DEVICE void loadParts(uint32_t (&a)[kTiles][4], const Tile& tile) const {
    if constexpr (kParts == 1) return ptx::syncwarp();
    syncGroup();
    SEQPAR_UNROLL
    for (int k = 0; k < kTiles; ++k) loadLeft<true>(a[k], tile, row(), k * kBlock, lane_);
  }
  /// state = total * state + added, where `term(channel, column)` recomputes a sum of `added`.
  template <class Term>
  SEQPAR_DEVICE void update(const float* total, float (&added)[kOwn / 8][4], const Term& term) {
    const ptx::AccumulatorLayout layout{lane_};
    SEQPAR_UNROLL
    for (int n = 0; n < kOwn / 8; ++n) {
      float low, high;
      ptx::loadPair(total + firstChannel() + 8 * n + layout.column(), low, high);
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) added[n][e] += (e % 2 == 0 ? low : high) * state_[n][e];
    }
    if (!ptx::voteAll(allFinite(added))) recomputeState(total, added, term);
    SEQPAR_UNROLL
    for (int n = 0; n < kOwn / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) state_[n][e] = added[n][e];
    }
  }
  template <class Term>
  SEQPAR_DEVICE void recomputeState(const float* total, float (&added)[kOwn / 8][4], const Term& term) {
    const ptx::AccumulatorLayout layout{lane_};
    const int v = layout.row(row()), c = layout.column(firstChannel());
    SEQPAR_ROLLED
    for (int i = 0; i < kOwn / 2; ++i) {
      const int channel = i / 4 * 8 + c + i % 2;
      const float value = term(channel, v + i / 2 % 2 * 8), decay = total[channel];
      SEQPAR_UNROLL
      for (int n = 0; n < kOwn / 8; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) {
          if (4 * n + e == i && !(added[n][e] - added[n][e] == 0))
            added[n][e] = value + forgetting(decay, state_[n][e]);
        }
      }
    }
  }
  SEQPAR_DEVICE void startTotal(float* to, const float* from) const {
    if (helper_ < kKeys / 4) ptx::cpAsync16(to + 4 * helper_, from + 4 * helper_, true);
  }

  const Task& task_;
  const int columns_, warp_, helper_;
  int lane_;  ///< with several parts read again for each chunk: keeps fewer addresses
  const ChainMemory memory_;
  int head_, column_, width_;
  int64_t batch_;
  bool ofState_;
  float state_[kOwn / 8][4];  ///< of the transpose
};

}  // namespace seqpar::attn::delta::half
