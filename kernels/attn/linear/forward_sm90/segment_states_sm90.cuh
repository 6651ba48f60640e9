// Pass 1 on sm_90a: maps of segments. Forward (like kernels/attn/linear/segment_states.cuh): from a segment's last
// chunk to its first, S^T += V^T K with the keys decayed to the segment's end. Backward: from the first chunk to the
// last, with queries as keys, decayed from the segment's start, and dOut as values.
//
// Work      a CTA of 512 threads, one per SM, takes items (batch, segment, head, 128 channels of k, 128 columns of v)
//           in steps of the grid. Pair: two heads with 64 columns that share keys, whose values are decayed instead;
//           with channel decays, two heads of 64 channels and columns each, one in each panel of a tile. With
//           `needed`, items are pieces of the chunks that heads need (NeededPieces), instead of segments
// Roles     warpgroup 0: producer, one thread issues TMA loads, a warp computes factors of tokens; 1: transform,
//           decays keys; 2, 3: consumers, wgmma, 64 columns of v each. 128 registers per thread.
// Tiles     chunks of 64 tokens x 128; S^T 64 x 128 fp32 in the registers of each consumer
// Smem      StatesShared: stages of keys and values (16 KiB each) and gates, six (fp32 gates: three, bf16: four)
// Barriers  mbarriers of a stage (Pipeline): full, prepared, empty, as in outputs_sm90.cuh. Named, Barrier: of the
//           transform warpgroup. __syncthreads(): NeededPieces::find()
// Overlap   lets the next kernel start at once, may itself start before the previous kernel ends, and executes
//           griddepcontrol.wait before it exits only: it accesses none of the previous kernel's data, except `needed`.
#pragma once

#include <type_traits>

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/forward_sm90/matrix_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/segment_shared_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/sweeps_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/token_gates_sm90.cuh"
#include "kernels/attn/linear/scan_maps.h"

namespace seqpar::attn::forward_sm90 {

struct StatesKernel {
  SegmentStates pass;
  int segments;  ///< number of segments, starting at the first; backward: ending at the last
  int64_t items;
  CUtensorMap keys, values, gates;  ///< backward: queries, dOut
  /// NeededChunks' result, for maps that only a scan reads; channel decays: a word that is 0 if no map is needed. NULL:
  /// all are needed.
  const int* needed = nullptr;
};

/// Gated: with input gates, forward with one decay for all channels; the backward's pass 1 is independent of them.
/// Wide: more than 128 channels, an item has a block of them. Pair: an item has two heads, one per consumer.
template <class T, GateKind Kind, Pass P, bool Gated = false, bool Wide = false, bool Pair = false>
class StatesCta {
 public:
  static_assert(!Gated || (P == Pass::Forward && Kind == GateKind::Uniform));
  static constexpr bool kShared = Pair && Kind == GateKind::Uniform;  ///< the two heads share keys
  static constexpr bool kJoined = Pair && !kShared;                   ///< they do not
  static_assert(!kJoined || !Wide);
  static constexpr bool kUniform = Kind == GateKind::Uniform;
  static constexpr int kTokenGates = kShared ? 2 : 1;  ///< heads with gates of their own
  using Gates = TokenGates<P, kTokenGates, Gated>;
  using Layout = StatesShared<Kind>;
  static constexpr int kStages = Layout::kStages;
  /// Chunks in flight: two per CTA keep memory busy, and more only queue before other loads.
  static constexpr int kInFlight = P == Pass::Forward && Kind == GateKind::Uniform ? 2 : kStages;

  SEQPAR_DEVICE StatesCta(const StatesKernel& kernel, char* shared)
      : kernel_(kernel),
        problem_(kernel.pass.problem),
        shared_(shared),
        base_(ptx::sharedAddress(shared)),
        pieces_(shared + Layout::kTotals),
        skip_{reinterpret_cast<volatile int*>(shared + Layout::kMarks)},
        pipeline_{base_ + Layout::kBarriers} {}

  SEQPAR_DEVICE void run() {
    if (threadIdx.x == 0) pipeline_.init(kUniform ? 1 : 0);
    if (kUniform && kernel_.needed != nullptr) {
      const int ctas = static_cast<int>(gridDim.x) / tilesOfHead();
      ptx::griddepcontrolWait();
      pieces_.find(kernel_.needed, problem_, kernel_.pass.segments.count, kTokenGates, max(ctas, 1));
    }
    __syncthreads();
    const int role = static_cast<int>(threadIdx.x) / kGroupThreads;
    if (role == kProducer) {
      if (threadIdx.x == 0) each([&](const Sweep& item, int first) { return load(item, first); });
      if (kUniform && threadIdx.x / 32 == 1) {
        each([&](const Sweep& item, int first) { return loadGates(item, first); });
      }
    } else if (role == kTransform) {
      each([&](const Sweep& item, int first) { return prepare(item, first); });
    } else {
      each([&](const Sweep& item, int first) { return multiply(item, first, role - kConsumer); });
    }
  }

 private:
  /// Calls act(item, running number of its first chunk), which returns the number of chunks loaded for it.
  template <class Act>
  SEQPAR_DEVICE void each(const Act& act) {
    int first = 0;
    const auto withTile = [&](Sweep item, int tile) {
      const int tiles = valueTiles();
      item.tile = Wide ? tile % tiles : tile;
      item.block = Wide ? tile / tiles : 0;
      first += act(item, first);
    };
    if (kUniform && kernel_.needed != nullptr) return eachPiece(withTile);
    const Segments& cut = kernel_.pass.segments;
    const int firstSegment = P == Pass::Forward ? 0 : cut.count - kernel_.segments;
    HeadRange heads = kernel_.pass.heads;
    if (Pair) heads.count = (heads.count + 1) / 2;
    for (int64_t index = blockIdx.x; index < kernel_.items; index += gridDim.x) {
      Sweep item{};
      static_cast<Item&>(item) = itemAt(index, problem_, heads, cut, kernel_.segments, tilesOfHead(), firstSegment);
      if (Pair) item.head += item.head - heads.first;
      if (Pair) item.second = item.head + 1;
      withTile(item, item.tile);
    }
  }
  /// The same for pieces.
  template <class Act>
  SEQPAR_DEVICE void eachPiece(const Act& withTile) {
    const int tiles = tilesOfHead(), items = pieces_.ranges() * tiles;
    for (int index = static_cast<int>(blockIdx.x); index < items; index += static_cast<int>(gridDim.x)) {
      pieces_.each<P>(index / tiles, problem_, kernel_.pass.segments.count, kTokenGates,
                      [&](const Sweep& piece) { withTile(piece, index % tiles); });
    }
  }
  SEQPAR_DEVICE int valueTiles() const { return (problem_.dv + Shape::kColumns - 1) / Shape::kColumns; }
  SEQPAR_DEVICE int tilesOfHead() const { return (Wide ? kBlocks : 1) * valueTiles(); }
  /// Head `which` of the item's two.
  static SEQPAR_DEVICE int headOf(const Sweep& item, int which) { return which == 0 ? item.head : item.second; }

  SEQPAR_DEVICE int load(const Sweep& item, int first) {
    const ItemChunks<P> chunks(item);
    const int qk = qkHead(problem_, item.head), batch = static_cast<int>(item.batch);
    for (int number = 0; number < chunks.count; ++number) {
      const int running = first + number;
      pipeline_.waitFree(running);
      if (kInFlight < kStages && running >= kInFlight) pipeline_.waitFull(running - kInFlight);
      if (number >= kStages && skip_.skips(running - kStages)) return number;
      const uint32_t stage = base_ + running % kStages * Layout::kStageBytes;
      const uint32_t full = pipeline_.full(running);
      const int token = static_cast<int>(chunks.token(number));
      ptx::mbarrierArriveExpectTx(full, Layout::kLoadedBytes);
      if (Kind != GateKind::Uniform) {
        ptx::tmaLoad(stage + Layout::kGates, kernel_.gates, full, item.firstChannel(), item.head, token, batch);
      }
      if (kJoined) {
        ptx::tmaLoad(stage + Layout::kGates + kPanelOfGates, kernel_.gates, full, 0, item.second, token, batch);
      }
#pragma unroll
      for (int tile = 0; tile < Shape::kMostTiles; ++tile) {
        const int column = tile * kSwizzleColumns, at = tile * kTileBytes;
        if (tile < Shape::kKeyTiles) {
          ptx::tmaLoad(stage + Layout::kKeys + at, kernel_.keys, full, kJoined ? 0 : item.firstChannel() + column,
                       kJoined ? qkHead(problem_, headOf(item, tile)) : qk, token, batch);
        }
        if (tile >= Shape::kValueTiles) continue;
        ptx::tmaLoad(stage + Layout::kValues + at, kernel_.values, full,
                     Pair ? 0 : item.tile * Shape::kColumns + column, Pair ? headOf(item, tile) : item.head, token,
                     batch);
      }
    }
    return chunks.count;
  }

  /// One warp; as load().
  SEQPAR_DEVICE int loadGates(const Sweep& item, int first) {
    const auto next = [&](int number) -> float* {
      const int running = first + number;
      pipeline_.waitFree(running);
      if (number >= kStages && skip_.skips(running - kStages)) return nullptr;
      return tokenGates(shared_ + running % kStages * Layout::kStageBytes);
    };
    const auto stored = [&](int number) {
      if (threadIdx.x % 32 == 0) ptx::mbarrierArrive(pipeline_.full(first + number));
    };
    return Gates(problem_, item).run(next, stored);
  }
  static SEQPAR_DEVICE float* tokenGates(char* stage) {
    return reinterpret_cast<float*>(stage + Layout::kLoadedBytes);
  }
  /// The factors of tokens `lane` and 32 + `lane`.
  static SEQPAR_DEVICE float2 readFactors(char* stage, int head) {
    const float* const at = tokenGates(stage) + head * kChunk + threadIdx.x % 32;
    return make_float2(at[0], at[32]);
  }

  SEQPAR_DEVICE int prepare(const Sweep& item, int first) {
    const ItemChunks<P> chunks(item);
    Sweep own = item;
    if (kShared) own.head = headOf(item, PrepareLane().half);  // two warps have one head of a pair
    float2 later = make_float2(0, 0);  // log2-decays of earlier chunks: of two channels or heads or, in x, of all
    bool skipping = false;
    int loaded = chunks.count;
    for (int number = 0; number < loaded; ++number) {
      const int running = first + number;
      char* const stage = shared_ + running % kStages * Layout::kStageBytes;
      pipeline_.waitFull(running);
      if (!skipping) {
        if (const int length = chunks.length(number); length < kChunk) clear(stage, length);
        if constexpr (kShared) {
          skipping = later.x < kFlushedLog2 && later.y < kFlushedLog2;
          if (!skipping) decayValues(stage, later);
        } else if constexpr (Kind == GateKind::Uniform) {
          skipping = !decayKeys(stage, later);
        } else {
          skipping = !decayKeys(stage, running % 2, item, later);
        }
        if (skipping) loaded = skip_.loaded(number, chunks.count);
        warpgroup::fenceProxyAsync();
      }
      if (threadIdx.x % kGroupThreads == 0) skip_.mark(running, skipping);
      ptx::mbarrierArrive(pipeline_.prepared(running));
    }
    if (kShared && PrepareLane().half == 1) later.x = later.y;
    if (item.tile == 0) putDecays(own, later);
    return loaded;
  }

  /// Zero-fills a stage from token `length` on, the item's end.
  SEQPAR_DEVICE void clear(char* stage, int length) const {
    clearRows(stage + Layout::kKeys, length);
    clearRows(stage + Layout::kValues, length);
    constexpr int kRow = kGateChannels * bytesOf(Kind);
    if (Kind != GateKind::Uniform) clearGates(stage + Layout::kGates, kRow, length);
    if (kJoined) clearGates(stage + Layout::kGates + kPanelOfGates, kRow, length);
    ptx::barrierSync(kTransformBarrier, kGroupThreads);
  }
  /// Multiplies keys by 2^(the log2-decays from after their tokens to the segment's end; backward: from the segment's
  /// start to their tokens); adds the chunk's decay to `later`. Returns false and changes nothing if all of the chunk
  /// is forgotten.
  SEQPAR_DEVICE bool decayKeys(char* stage, int slot, const Sweep& item, float2& later) {
    const PrepareLane me;
    const char* const gates = stage + Layout::kGates + me.channel / kGateChannels * kPanelOfGates;
    float2 decays[32];
    float2 own = make_float2(0, 0);
#pragma unroll
    for (int t = 0; t < 32; ++t) {
      decays[t] = log2Pair(readGates<Kind, kGateChannels>(gates, 32 * me.half + t, me.channel % kGateChannels));
      own = make_float2(own.x + decays[t].x, own.y + decays[t].y);
    }
    float2* const totals = reinterpret_cast<float2*>(shared_ + Layout::kTotals) + slot * Shape::kChannels;
    totals[me.half * Shape::kPairs + me.pair] = own;
    const bool forgotten = (later.x < kFlushedLog2 && later.y < kFlushedLog2) ||
                           item.firstChannel() + me.channel % kGateChannels >= problem_.dk;
    if (!ptx::barrierRedOr(kTransformBarrier, kGroupThreads, !forgotten)) return false;
    const float2 other = totals[(1 - me.half) * Shape::kPairs + me.pair];
    float2 sum = me.half == (P == Pass::Forward ? 0 : 1) ? other : make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int t = P == Pass::Forward ? 31 - i : i;
      const float2 decay = decays[t];
      if (P == Pass::Forward) decays[t] = make_float2(later.x + sum.x, later.y + sum.y);
      sum = make_float2(sum.x + decay.x, sum.y + decay.y);
      if (P == Pass::Backward) decays[t] = make_float2(later.x + sum.x, later.y + sum.y);
    }
    char* const keys[1] = {stage + Layout::kKeys};
    scaleTokens<T>(me, keys, [&](int t, float2(&by)[1]) {
      by[0] = make_float2(ptx::ex2Approx(decays[t].x), ptx::ex2Approx(decays[t].y));
    });
    later = make_float2(later.x + (own.x + other.x), later.y + (own.y + other.y));
    return true;
  }
  /// With one decay for all channels; multiplies keys by their input gates, too.
  SEQPAR_DEVICE bool decayKeys(char* stage, float2& later) {
    if (later.x < kFlushedLog2) return false;
    const float2 factors = readFactors(stage, 0);
    later.x = tokenGates(stage)[Gates::kAfter];
    if (Gated || problem_.gate != Gate::None) scaleRows<T>(stage + Layout::kKeys, factors);
    return true;
  }
  /// Pair: multiplies the values of the warp's head by their factors; of a head that has forgotten the chunk, to 0.
  SEQPAR_DEVICE void decayValues(char* stage, float2& later) const {
    constexpr int kAtOnce = 8, kRows = kChunk / kAtOnce;
    const PrepareLane me;
    const bool forgotten = (me.half == 0 ? later.x : later.y) < kFlushedLog2;
    const float2 factors = readFactors(stage, me.half);
    const float* const after = tokenGates(stage) + Gates::kAfter;
    later = make_float2(after[0], after[1]);
    if (!forgotten && !Gated && problem_.gate == Gate::None) return;
    const int row = me.pair / 8;
    char* const at = stage + Layout::kValues + me.half * kTileBytes + swizzled(row, me.pair % 8 * 16);
    uint4 vectors[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) vectors[i] = *reinterpret_cast<const uint4*>(at + i * kAtOnce * kRowBytes);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float of = __shfl_sync(0xffffffffU, i < kRows / 2 ? factors.x : factors.y, (row + i * kAtOnce) % 32);
      vectors[i] = forgotten ? make_uint4(0, 0, 0, 0) : scaled<T>(vectors[i], of);
      *reinterpret_cast<uint4*>(at + i * kAtOnce * kRowBytes) = vectors[i];
    }
  }
  SEQPAR_DEVICE void putDecays(const Sweep& of, float2 later) {
    const PrepareLane me;
    Sweep item = of;
    if (kJoined) item.head = headOf(item, me.channel / kGateChannels);
    if (!isOwn(item)) return;
    const int64_t map = mapIndex(item, problem_, kernel_.pass.segments);
    const int width = transitionWidth(problem_);
    const bool forgets = P == Pass::Forward ? startsSequence(item) : ends(item);
    const auto put = [&](int channel, float log2) {
      const bool nothingLeft = forgets || log2 < kFlushedLog2;
      if (channel < width) {
        kernel_.pass.maps.transitions[map * width + channel] = nothingLeft ? -INFINITY : log2 / kLog2e;
      }
    };
    if (!kShared && me.half != 0) return;
    if (Kind != GateKind::Uniform) {
      put(item.firstChannel() + me.channel % kGateChannels, later.x);
      put(item.firstChannel() + me.channel % kGateChannels + 1, later.y);
    } else if (me.pair == 0 && item.block == 0) {
      put(0, later.x);
      const int next = P == Pass::Forward ? item.segment - 1 : item.segment + 1;
      if (item.isLast && next >= 0 && next < kernel_.pass.segments.count) {
        kernel_.pass.maps.transitions[map + next - item.segment] = kNoMap;
      }
    }
  }

  SEQPAR_DEVICE int multiply(const Sweep& item, int first, int which) {
    const ItemChunks<P> chunks(item);
    constexpr int kElements = kJoined ? Shape::kStateElements / 2 : Shape::kStateElements;
    float state[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) state[i] = 0;
    bool skipping = false;
    int loaded = chunks.count;
    for (int number = 0; number < loaded; ++number) {
      const int running = first + number;
      const uint32_t stage = base_ + running % kStages * Layout::kStageBytes;
      pipeline_.waitPrepared(running);
      if (!skipping && skip_.skips(running)) {
        skipping = true;
        loaded = skip_.loaded(number, chunks.count);
      }
      if (!skipping) {
        const Matrix values = columnsOf(stage + Layout::kValues + which * kTileBytes, kTileBytes);
        const Matrix keys = columnsOf(stage + Layout::kKeys + (kJoined ? which * kTileBytes : 0), kTileBytes);
        warpgroup::fenceOperand(state);
        warpgroup::arrive();
#pragma unroll
        for (int step = 0; step < kChunk / 16; ++step) {
          warpgroup::multiply<T, Terms::Rows, Terms::Rows>(state, values + step * kNextStepOfColumns,
                                                           keys + step * kNextStepOfColumns, true);
        }
        warpgroup::commit();
        warpgroup::wait<0>();
        warpgroup::fenceOperand(state);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrierArrive(pipeline_.empty(running));
    }
    if constexpr (P == Pass::Backward) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) state[i] *= problem_.scale;
    }
    Sweep own = item;
    if (Pair) own.head = headOf(item, which);
    if (!isOwn(own)) return loaded;
    const int64_t map = mapIndex(own, problem_, kernel_.pass.segments);
    float* const to = kernel_.pass.maps.states + map * problem_.dk * problem_.dv;
    if constexpr (Pair) {
      putState(to, state, problem_, item.firstChannel(), 0, 0);
    } else if (Kind == GateKind::Uniform && kernel_.pass.format != MapFormat::RowMajor) {
      putPacked(to, state, item.tile, which);
    } else {
      putState(to, state, problem_, item.firstChannel(), item.tile, which);
    }
    return loaded;
  }

  /// Whether the launch has the item's head: two joined heads may be the last one and none.
  SEQPAR_DEVICE bool isOwn(const Sweep& item) const {
    return !kJoined || item.head < kernel_.pass.heads.first + kernel_.pass.heads.count;
  }

  static constexpr int kGateChannels = kJoined ? kSwizzleColumns : Shape::kChannels;  ///< of a matrix of gates
  static constexpr int kPanelOfGates = kChunk * kSwizzleColumns * bytesOf(Kind);      ///< kJoined: bytes of a head
  const StatesKernel& kernel_;
  const LinearProblem& problem_;
  char* shared_;
  uint32_t base_;
  NeededPieces pieces_;  ///< where channel decays have totals
  Skip<kStages> skip_;
  Pipeline<kStages> pipeline_;
};

template <class T, GateKind Kind, Pass P, bool Gated = false, bool Wide = false, bool Pair = false>
__global__ void __launch_bounds__(kThreads, 1) segmentStatesSm90(const __grid_constant__ StatesKernel kernel) {
  extern __shared__ __align__(1024) char shared[];
  ptx::griddepcontrolLaunchDependents();
  if constexpr (Kind != GateKind::Uniform) {
    if (kernel.needed != nullptr) {
      ptx::griddepcontrolWait();
      if (*kernel.needed == 0) return;
    }
  }
  StatesCta<T, Kind, P, Gated, Wide, Pair>(kernel, shared).run();
  // This kernel neither reads nor overwrites the previous kernel's data. But the next kernel only waits for this one.
  ptx::griddepcontrolWait();
}

}  // namespace seqpar::attn::forward_sm90
