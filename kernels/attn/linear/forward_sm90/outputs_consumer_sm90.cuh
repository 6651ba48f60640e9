// A consumer warpgroup of pass 3 (outputs_sm90.cuh), for all kinds of decays.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/forward_sm90/outputs_shared_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/sweeps_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

struct OutputsKernel {
  Outputs pass;
  int64_t items;
  CUtensorMap queries, keys, values, gates, out;
};

/// One consumer warpgroup: 64 columns of v; Pair: all columns of one of the item's two heads; with Block = ShortShape,
/// queries and keys of its own, too. TwoTiles: outputs of alternate chunks have different buffers. Wide: the item is
/// one of several sweeps.
template <class T, class LayoutOf, bool Pair, bool TwoTiles, bool Wide, class Block = Shape>
class OutputsConsumer {
 public:
  using Layout = LayoutOf;
  using Own = Block;
  static constexpr bool kJoined = !std::is_same_v<Own, Shape>;
  static_assert(!kJoined || (Pair && !Wide));
  static constexpr bool kRaises = Numbers<T>::kRaises;

  SEQPAR_DEVICE OutputsConsumer(const OutputsKernel& kernel, char* shared, int which)
      : kernel_(kernel),
        problem_(kernel.pass.problem),
        shared_(shared),
        which_(which),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    if constexpr (Wide) memory_ = {kernel.pass.workspace + blockIdx.x * SweepMemory::kFloats, which};
  }

 protected:
  /// Calls multiply(stage, chunk, running number, whether it is the item's last) for each prepared chunk; returns their
  /// number.
  template <class Multiply>
  SEQPAR_DEVICE int each(const Sweep& item, int first, const Pipeline<Layout::kStages>& pipeline,
                         const Multiply& multiply) {
    ForwardChunks chunks(item);
    int running = first;
    for (; chunks.more(); ++running) {
      const Chunk chunk = chunks.take();
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      pipeline.waitPrepared(running);
      if (Layout::kValuesLoaded) pipeline.waitFull(running);
      multiply(stage, chunk, running, !chunks.more());
      __syncwarp();
      if (lane_ == 0) ptx::mbarrierArrive(pipeline.empty(running));
    }
    return running - first;
  }
  SEQPAR_DEVICE bool wantsFinal(const Sweep& item) const {
    return kernel_.pass.finalState != nullptr && item.segment == kernel_.pass.segments.count - 1 && item.closes;
  }
  SEQPAR_DEVICE void putFinal(const Sweep& item) {
    putState(kernel_.pass.finalState + headIndex(item, problem_) * problem_.dk * problem_.dv, state_, problem_,
             item.firstChannel(), item.tile, half());
  }
  /// The state between two sweeps of a block.
  SEQPAR_DEVICE void keepState(const Sweep& item) { putOwn(memory_.state(item), state_); }
  SEQPAR_DEVICE void resume(const Sweep& item) {
    eachOwn(state_, memory_.state(item), [](float& number, float kept) { number = kept; });
  }
  /// The consumer's columns of the tile, in halves.
  SEQPAR_DEVICE int half() const { return Pair ? 0 : which_; }
  SEQPAR_DEVICE const float* vectors(const char* stage, int number) const {
    return reinterpret_cast<const float*>(stage + Layout::kVectors) + number * Shape::kChannels +
           (kJoined ? which_ * Own::kChannels : 0);
  }
  SEQPAR_DEVICE void syncGroup() const { ptx::barrierSync(kConsumerBarrier + which_, kGroupThreads); }

  /// Multiplies each channel by factor[channel]; with `mayForget`, a factor of 0 discards even NaN.
  template <bool mayForget>
  SEQPAR_DEVICE void scaleState(const float* factors) {
#pragma unroll
    for (int j = 0; j < Own::kOctets; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(factors + 8 * j + 2 * (lane_ % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 == 0 ? by.x : by.y;
        state_[4 * j + e] = mayForget && factor == 0 ? 0 : state_[4 * j + e] * factor;
      }
    }
  }

  /// A over all channels: change(element, channel) of the state, rounded.
  template <class Change>
  SEQPAR_DEVICE void round(typename Own::Operand& a, const Change& change) const {
    const int first = 2 * ptx::opaque(lane_ % 4);
#pragma unroll
    for (int i = 0; i < Own::kStateElements; i += 2) {
      const int channel = 8 * (i / 4) + first;
      a[i / 8][i / 2 % 4] = Numbers<T>::pack(change(state_[i], channel), change(state_[i + 1], channel + 1));
    }
  }
  /// With kRaises, times `scale`, and before the state changes: the compiler would keep its old values in registers.
  SEQPAR_DEVICE void roundTimes(typename Own::Operand& a, float scale) const {
    round(a, [&](float x, int) { return kRaises ? x * scale : x; });
    if constexpr (kRaises) {
#pragma unroll
      for (int i = 0; i < 4 * Own::kSteps; ++i) {
        uint32_t& word = a[i / 4][i % 4];
        word = static_cast<uint32_t>(ptx::opaque(static_cast<int>(word)));
      }
    }
  }
  /// The power of 2 that change(element) of the warp's part of the state is multiplied by before rounding: of 16
  /// columns of v, which are rows of O^T.
  template <class Change>
  SEQPAR_DEVICE float stateScale(const Change& change) const {
    if constexpr (!kRaises) return 1;
    constexpr int kParts = 4;
    float largest[kParts] = {};
#pragma unroll
    for (int i = 0; i < Own::kStateElements; ++i) {
      largest[i % kParts] = fmaxf(largest[i % kParts], fabsf(change(state_[i])));
    }
    const float mine = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
    return roundingScaleOf<T>(asFloat(ptx::reduxMax(asBits(mine))));
  }
  SEQPAR_DEVICE float stateScale() const {
    return stateScale([](float x) { return x; });
  }
  /// Calls act(element of O^T, its factor), with a factor per query in memory; for `Count` / 4 groups of 8 queries.
  template <int Count, class Act>
  SEQPAR_DEVICE void eachOfQueries(float (&out)[Count], const float* factors, const Act& act) const {
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(factors + 8 * j + 2 * (lane_ % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) act(out[4 * j + e], e % 2 == 0 ? by.x : by.y);
    }
  }
  /// Divides by the powers of 2 of raiseRows().
  template <int Count>
  SEQPAR_DEVICE void lower(float (&out)[Count], const float* inverses) const {
    eachOfQueries(out, inverses, [](float& number, float inverse) { number *= inverse; });
  }
  /// The inverses of the powers of 2 of the chunk's scores, per query.
  SEQPAR_DEVICE const float* inverses(const char* stage) const {
    return reinterpret_cast<const float*>(stage + Layout::kInverses) + (Pair ? which_ * kChunk : 0);
  }

  struct Operands {
    Matrix queries, keys, values, scores;
  };
  SEQPAR_DEVICE Operands operands(const char* stage) const {
    const uint32_t at = ptx::sharedAddress(stage), ofHead = at + (kJoined ? which_ * kTileBytes : 0);
    return {rowsOf(ofHead + Layout::kQueries), columnsOf(ofHead + Layout::kKeys, kTileBytes),
            columnsOf(at + Layout::kValues + which_ * kTileBytes, kTileBytes),
            rowsOf(at + Layout::kScores + (Pair ? which_ * kTileBytes : 0))};
  }

  static SEQPAR_DEVICE void addScores(float (&out)[32], const Operands& with, bool add) {
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step) {
      warpgroup::multiply<T, Terms::Rows, Terms::AlongRows>(out, with.values + step * kNextStepOfColumns,
                                                            with.scores + step * kNextStepOfRows, add || step > 0);
    }
  }
  template <int Step>
  SEQPAR_DEVICE void addKeys(const Operands& with) {
    warpgroup::multiply<T, Terms::Rows, Terms::Rows>(state_, with.values + Step * kNextStepOfColumns,
                                                     with.keys + Step * kNextStepOfColumns, true);
  }

  /// Transposes O^T, the sum over all blocks, into the output buffer.
  SEQPAR_DEVICE void put(float (&out)[32], const Sweep& item, const Chunk& chunk, int running) const {
    if (Wide && !completes(out, item, chunk, 0)) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float part[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) part[i] = out[8 * j + i];
      putColumns(part, running, 16 * j);
    }
  }
  /// Adds the first block's outputs, of which these start at the warpgroup's number `from`, or stores them. Returns
  /// whether the sum is complete.
  template <int Count>
  SEQPAR_DEVICE bool completes(float (&out)[Count], const Sweep& item, const Chunk& chunk, int from) const {
    float* const at = memory_.outputs(item, chunk.token) + from;
    if (item.block == 0) {
      putOwn(at, out);
      return false;
    }
    eachOwn(out, at, [](float& number, float kept) { number += kept; });
    return true;
  }
  SEQPAR_DEVICE char* outTile(int running) const {
    if constexpr (!Layout::kValuesLoaded) static_assert(Layout::kFine == Layout::kOut + kConsumers * kTileBytes);
    return shared_ + Layout::kOut + ((TwoTiles ? running % 2 * 2 : 0) + which_) * kTileBytes;
  }
  /// Waits until the output buffer is free: the outputs of the previous chunk were copied.
  SEQPAR_DEVICE void awaitOutTile() const {
    if (TwoTiles) return;  // finish() has waited
    if (thread_ == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
    syncGroup();
  }
  /// For 16 tokens, starting at `token` of the chunk.
  SEQPAR_DEVICE void putColumns(const float (&out)[8], int running, int token) const {
    const int warp = thread_ / 32, matrix = lane_ / 8;
    const float scale = problem_.scale;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = Numbers<T>::pack(out[2 * i] * scale, out[2 * i + 1] * scale);
    ptx::stmatrixX4Trans(ptx::sharedAddress(outTile(running)) +
                             swizzled(token + matrix / 2 * 8 + lane_ % 8, 32 * warp + matrix % 2 * 16),
                         words);
  }
  /// Stores the outputs with the TMA. Afterwards the buffer of the next chunk's outputs is free, if it is another one.
  SEQPAR_DEVICE void finish(const Sweep& item, const Chunk& chunk, int running) const {
    if (Wide && item.block == 0) return;
    warpgroup::fenceProxyAsync();
    if (TwoTiles && thread_ == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
    syncGroup();
    const char* const tile = outTile(running);
    const int column = item.tile * Shape::kColumns + half() * kSwizzleColumns;
    if (chunk.length == kChunk) {
      if (thread_ == 0) {
        ptx::tmaStore(kernel_.out, ptx::sharedAddress(tile), column, item.head, static_cast<int>(chunk.token),
                      static_cast<int>(item.batch));
        ptx::cpAsyncBulkCommitGroup();
      }
      return;
    }
    const Output& to = kernel_.pass.out;
    char* const rows = static_cast<char*>(to.data) +
                       2 * (item.batch * to.batch + chunk.token * to.token + item.head * to.head + column);
#pragma unroll 1
    for (int row = thread_ / 8; row < chunk.length; row += kGroupThreads / 8) {
      const int vector = thread_ % 8;
      if (8 * vector < problem_.dv - column) {
        *reinterpret_cast<uint4*>(rows + 2 * row * to.token + 16 * vector) =
            *reinterpret_cast<const uint4*>(tile + swizzled(row, 16 * vector));
      }
    }
  }

  const OutputsKernel& kernel_;
  const LinearProblem& problem_;
  char* shared_;
  int which_, thread_, lane_;
  SweepMemory memory_;  ///< Wide
  typename Own::State state_;
};

}  // namespace seqpar::attn::forward_sm90
