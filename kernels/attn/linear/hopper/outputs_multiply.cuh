// The consumer warpgroups of pass 3 (outputs.cuh).
#pragma once

#include "kernels/attn/linear/hopper/state_before.cuh"

namespace seqpar::attn::hopper {

struct OutputsKernel {
  Outputs pass;
  int64_t items;
  CUtensorMap queries, keys, values, gates, out;
};

/// One consumer warpgroup: 64 columns of v.
template <class T, GateKind Kind>
class Multiplier {
 public:
  using Layout = OutputsShared;
  static constexpr float kToState = Numbers<T>::kStateScale;
  static constexpr bool kTwoTiles = Kind == GateKind::Uniform;  ///< of outputs; other kinds use the space otherwise

  SEQPAR_DEVICE Multiplier(const OutputsKernel& kernel, char* shared, int which)
      : kernel_(kernel),
        problem_(kernel.pass.problem),
        shared_(shared),
        which_(which),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  SEQPAR_DEVICE int run(const Item& item, int first, const Pipeline<Layout::kStages>& pipeline) {
    if constexpr (Kind == GateKind::Uniform) {
      StateBefore(kernel_.pass, shared_, which_).make(item, state_);
    } else {
      start(item);
    }
    const bool wantsFinal = kernel_.pass.finalState != nullptr && item.segment == kernel_.pass.segments.count - 1;
    ForwardChunks chunks(item);
    int running = first;
    for (; chunks.more(); ++running) {
      const Chunk chunk = chunks.take();
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      pipeline.waitPrepared(running);
      if constexpr (Kind == GateKind::Uniform) {
        if (vectors(stage, 0)[kChunk] == 0) {
          multiplyUniform<true>(stage, item, chunk, running);
        } else {
          multiplyUniform<false>(stage, item, chunk, running);
        }
      } else {
        scaleState<false>(vectors(stage, 0));
        if (reinterpret_cast<const int*>(shared_ + Layout::kExact)[running % Layout::kStages] == 0) {
          multiplySafe(stage, item, chunk, running);
        } else {
          multiplyExact(stage, item, chunk, running);
        }
        if (wantsFinal && !chunks.more()) scaleState<false>(vectors(stage, 1));
      }
      __syncwarp();
      if (lane_ == 0) ptx::mbarrierArrive(pipeline.empty(running));
    }
    if (Kind == GateKind::Uniform && wantsFinal) putFinal(item);  // earlier, for a lead
    if (thread_ == 0) ptx::cpAsyncBulkWaitGroup();
    ptx::griddepcontrolWait();  // the next kernel only waits for this one
    if (Kind != GateKind::Uniform && wantsFinal) putFinal(item);
    return running - first;
  }

 private:
  SEQPAR_DEVICE void putFinal(const Item& item) {
    putState(kernel_.pass.finalState + headIndex(item, problem_) * problem_.dk * problem_.dv, state_, problem_,
             item.tile, which_);
  }
  static SEQPAR_DEVICE const float* vectors(const char* stage, int number) {
    return reinterpret_cast<const float*>(stage + Layout::kVectors) + number * kMostColumns;
  }
  SEQPAR_DEVICE void syncGroup() const { ptx::barrierSync(kMultiplyBarrier + which_, kGroupThreads); }

  /// Like StateBefore, for channel decays, where registers do not suffice for two states at once: the code of
  /// StateBefore spills more of them.
  SEQPAR_DEVICE void start(const Item& item) {
    const Outputs& pass = kernel_.pass;
    const int64_t firstMap = mapIndex(item, problem_, pass.segments) - item.before;  // of the sequence
    const int64_t size = int64_t{problem_.dk} * problem_.dv;
    const float* const initial =
        pass.initial != nullptr && item.continues ? pass.initial + headIndex(item, problem_) * size : nullptr;
#pragma unroll
    for (int i = 0; i < 64; ++i) state_[i] = 0;
    if (item.before == 0 && initial == nullptr) return;  // independent of pass 1: these CTAs may overlap with it
    // From the last segment to the first, or all segments as one; then `initial`.
    if (!pass.mapsComplete) ptx::griddepcontrolWait();
#pragma unroll 1
    for (int next = item.before; next >= 0; next = pass.perSegment ? next - 1 : min(next, 1) - 1) {
      const float* from = initial;
      if (next > 0) from = pass.maps.states + (firstMap + (pass.perSegment ? next - 1 : next)) * size;
      if (from != nullptr && !addDecayed(item, from, next)) return;  // the earlier states are forgotten too
    }
  }
  /// Adds a state decayed over the sequence's segments from `first` to before the item's. Returns false if the decay
  /// has forgotten it.
  SEQPAR_DEVICE bool addDecayed(const Item& item, const float* from, int first) {
    const Outputs& pass = kernel_.pass;
    const int column = item.tile * kMostColumns, values = problem_.dv - column;
    // Uses the output buffer, after the outputs of the previous item were copied.
    float* const factors = reinterpret_cast<float*>(shared_ + Layout::kOut + which_ * kTileBytes);
    if (thread_ == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
    syncGroup();
    const int width = transitionWidth(problem_);
    const int64_t firstMap = mapIndex(item, problem_, pass.segments) - item.before;
    float sum = 0;
    for (int map = first; map < item.before && thread_ < problem_.dk; ++map) {
      sum += pass.maps.transitions[(firstMap + map) * width + (width > 1 ? thread_ : 0)];
    }
    const float mine = thread_ < problem_.dk ? ptx::ex2Approx(sum * kLog2e) : 0;
    factors[thread_] = mine;
    if (!ptx::barrierRedOr(kMultiplyBarrier + which_, kGroupThreads, mine != 0)) return false;
    const int thread = ptx::opaque(thread_), row = kSwizzleColumns * which_ + 16 * (thread / 32) + thread % 32 / 4;
    const float* at = from + column + 2 * (thread % 4) * problem_.dv + row;
    const bool there[2] = {row < values, row + 8 < values};
    float numbers[64];  // loaded together; indexed as in eachOfState()
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool exists = 8 * j < problem_.dk && there[e / 2];
        numbers[4 * j + e] = exists ? at[e % 2 * problem_.dv + e / 2 * 8] : 0;
      }
      at += 8 * problem_.dv;
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(factors + 8 * j + 2 * (thread % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 == 0 ? by.x : by.y;
        state_[4 * j + e] += factor == 0 ? 0 : factor * numbers[4 * j + e];
      }
    }
    syncGroup();
    return true;
  }

  /// Multiplies each channel by factor[channel]; with `mayForget`, a factor of 0 discards even NaN.
  template <bool mayForget>
  SEQPAR_DEVICE void scaleState(const float* factors) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
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
  SEQPAR_DEVICE void round(uint32_t (&a)[8][4], const Change& change) const {
    const int first = 2 * ptx::opaque(lane_ % 4);
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
      const int channel = 8 * (i / 4) + first;
      a[i / 8][i / 2 % 4] = Numbers<T>::pack(change(state_[i], channel), change(state_[i + 1], channel + 1));
    }
  }
  SEQPAR_DEVICE void round(uint32_t (&a)[8][4]) const {
    round(a, [](float x, int) { return x * kToState; });
  }

  struct Operands {
    Matrix queries, keys, values, scores;
  };
  SEQPAR_DEVICE Operands operands(const char* stage) const {
    const uint32_t at = ptx::sharedAddress(stage);
    return {rowsOf(at + Layout::kQueries), columnsOf(at + Layout::kKeys, kTileBytes),
            columnsOf(at + Layout::kValues + which_ * kTileBytes, kTileBytes), rowsOf(at + Layout::kScores)};
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

  /// For small exponents within the chunk: queries, keys and the state are relative to the middle of the chunk.
  SEQPAR_DEVICE void multiplySafe(char* stage, const Item& item, const Chunk& chunk, int running) {
    const Operands with = operands(stage);
    uint32_t a[8][4];
    float out[32];
    awaitOutTile();
    round(a);
    warpgroup::fenceOperand(state_);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      warpgroup::multiply<T, Terms::AlongRows>(out, a[step], with.queries + channelStep(step), step > 0);
    }
    addScores(out, with, true);
    warpgroup::commit();
    addKeys<0>(with);
    addKeys<1>(with);
    addKeys<2>(with);
    addKeys<3>(with);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(out);
    put(out, running);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    finish(item, chunk, running);
  }

  /// Blocks of 16 tokens, relative to the block's start; the scores are those within blocks. Decays may be 0.
  /// Non-finite elements of the state are excluded from the product, because queries are 0 where such elements are
  /// forgotten. Outputs with other queries for such elements become NaN.
  SEQPAR_DEVICE void multiplyExact(char* stage, const Item& item, const Chunk& chunk, int running) {
    const Operands with = operands(stage);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i) sum += state_[i] * 0.0F;  // 0, or NaN
    const bool finite = !ptx::barrierRedOr(kMultiplyBarrier + which_, kGroupThreads, sum != sum);
    awaitOutTile();
#pragma unroll 1
    for (int block = 0; block < kChunk / kBlockTokens; ++block) {
      const int rows = block * kNextStepOfColumns;
      float out[8];
      bool met[8] = {};
      if (!finite) {
        // A different weight per channel, so that queries do not cancel.
        multiplyBlock(out, with.queries + rows, [](float x, int channel) {
          return isfinite(x) ? 0 : 1 + static_cast<float>(channel) / kMostColumns;
        });
#pragma unroll
        for (int i = 0; i < 8; ++i) met[i] = out[i] != 0;
      }
      multiplyBlock(out, with.queries + rows, [](float x, int) { return isfinite(x) ? x * kToState : 0; });
      scaleState<true>(vectors(stage, 2) + block * kMostColumns);
      warpgroup::fenceOperand(state_);
      warpgroup::fenceOperand(out);
      warpgroup::arrive();
      warpgroup::multiply<T, Terms::Rows, Terms::AlongRows>(out, with.values + rows,
                                                            with.scores + (rows + block * kNextStepOfRows), true);
      warpgroup::multiply<T, Terms::Rows, Terms::Rows>(state_, with.values + rows, with.keys + rows, true);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(out);
      warpgroup::fenceOperand(state_);
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = met[i] ? NAN : out[i];
      putColumns(out, running, 16 * block);
    }
    finish(item, chunk, running);
  }
  template <class Change>
  SEQPAR_DEVICE void multiplyBlock(float (&out)[8], Matrix queries, const Change& change) {
    uint32_t a[8][4];
    round(a, change);
    warpgroup::fenceOperand(out);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      warpgroup::multiply<T, Terms::AlongRows>(out, a[step], queries + channelStep(step), step > 0);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
  }

  /// One decay for all channels: keys contain their decays to the chunk's end; the state's contribution to outputs is
  /// multiplied by the decays from the chunk's start. `forgets`: the decay of the whole chunk is 0; discarded elements
  /// may be non-finite.
  template <bool forgets>
  SEQPAR_DEVICE void multiplyUniform(char* stage, const Item& item, const Chunk& chunk, int running) {
    const Operands with = operands(stage);
    uint32_t a[8][4];
    float out[32], within[32];
    round(a);
    const float decay = vectors(stage, 0)[kChunk];
#pragma unroll
    for (int i = 0; i < 64; ++i) state_[i] = forgets ? 0 : state_[i] * decay;
    warpgroup::fenceOperand(state_);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      warpgroup::multiply<T, Terms::AlongRows>(out, a[step], with.queries + channelStep(step), step > 0);
    }
    addScores(within, with, false);
    warpgroup::commit();
    addKeys<0>(with);
    addKeys<1>(with);
    addKeys<2>(with);
    addKeys<3>(with);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(out);
    warpgroup::fenceOperand(within);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(vectors(stage, 0) + 8 * j + 2 * (lane_ % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float factor = e % 2 == 0 ? by.x : by.y;
        within[4 * j + e] += forgets && factor == 0 ? 0 : out[4 * j + e] * factor;
      }
    }
    put(within, running);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(state_);
    finish(item, chunk, running);
  }

  /// Transposes O^T into the output buffer.
  SEQPAR_DEVICE void put(const float (&out)[32], int running) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float part[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) part[i] = out[8 * j + i];
      putColumns(part, running, 16 * j);
    }
  }
  SEQPAR_DEVICE char* outTile(int running) const {
    static_assert(Layout::kFine == Layout::kOut + 2 * kTileBytes);
    return shared_ + Layout::kOut + ((kTwoTiles ? running % 2 * 2 : 0) + which_) * kTileBytes;
  }
  /// Waits until the output buffer is free: the outputs of the previous chunk were copied.
  SEQPAR_DEVICE void awaitOutTile() const {
    if (kTwoTiles) return;  // finish() has waited
    if (thread_ == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
    syncGroup();
  }
  /// For 16 tokens, starting at `token` of the chunk.
  SEQPAR_DEVICE void putColumns(const float (&out)[8], int running, int token) const {
    const int warp = thread_ / 32, matrix = lane_ / 8;
    const float scale = problem_.scale / kToState;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = Numbers<T>::pack(out[2 * i] * scale, out[2 * i + 1] * scale);
    ptx::stmatrixX4Trans(ptx::sharedAddress(outTile(running)) +
                             swizzled(token + matrix / 2 * 8 + lane_ % 8, 32 * warp + matrix % 2 * 16),
                         words);
  }
  /// Stores the outputs with the TMA. Afterwards the buffer of the next chunk's outputs is free, if it is another one.
  SEQPAR_DEVICE void finish(const Item& item, const Chunk& chunk, int running) const {
    warpgroup::fenceProxyAsync();
    if (kTwoTiles && thread_ == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
    syncGroup();
    const char* const tile = outTile(running);
    const int column = item.tile * kMostColumns + which_ * kSwizzleColumns;
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
  float state_[64];
};

}  // namespace seqpar::attn::hopper
