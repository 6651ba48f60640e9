// Pass 1 of the forward on sm_90a: maps of segments, as kernels/attn/linear/segment_states.cuh makes them: from a
// segment's last chunk to its first, S^T += V^T K with the keys decayed to the segment's end.
#pragma once

#include "kernels/attn/linear/hopper/pipeline.cuh"
#include "kernels/attn/linear/hopper/wgmma.cuh"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::hopper {

struct StatesKernel {
  SegmentStates pass;
  int segments;
  int64_t items;
  CUtensorMap keys, values, gates;
};

template <GateKind Kind>
struct StatesShared {
  static constexpr int kGateBytes = kChunk * kMostColumns * bytesOf(Kind);
  static constexpr int kKeys = 0;
  static constexpr int kValues = kMatrixBytes;
  static constexpr int kGates = 2 * kMatrixBytes;
  static constexpr int kStageBytes = kGates + kGateBytes;
  static constexpr int kStages = 196608 / kStageBytes;
  static constexpr int kTotals = kStages * kStageBytes;             ///< [2][2][128], of halves of chunks
  static constexpr int kSkipFrom = kTotals + 4 * kMostColumns * 4;  ///< see Skip
  static constexpr int kBarriers = kSkipFrom + 16;
  static constexpr int kBytes = kBarriers + Pipeline<kStages>::kBarrierBytes;
};

/// The chunks of an item, from its last token to the start of the sequence that its end belongs to.
struct ItemChunks {
  int64_t begin;  ///< of the item; chunks begin at multiples of kChunk from it
  int64_t end;
  int64_t start;  ///< of the sequence, if in the item, or -1
  int whole;      ///< chunks of the item
  int count;      ///< of the sequence

  __device__ __forceinline__ ItemChunks(const LinearProblem& problem, const Item& item)
      : begin(item.begin), end(item.end), start(-1) {
    const int64_t starts = startsBefore(problem, end);
    if (starts > 0 && problem.starts[starts - 1] >= begin) start = problem.starts[starts - 1];
    whole = end > begin ? static_cast<int>((end - begin + kChunk - 1) / kChunk) : 0;
    count = whole - (start >= 0 ? static_cast<int>((start - begin) / kChunk) : 0);
  }
  /// The first token of the chunk that comes as the `number`th.
  __device__ __forceinline__ int64_t token(int number) const { return begin + int64_t{whole - 1 - number} * kChunk; }
  /// How many tokens of a chunk, its first ones, belong to other sequences.
  __device__ __forceinline__ int others(int64_t token) const {
    return start > token ? static_cast<int>(start - token) : 0;
  }
};

/// From which chunk of an item on, by its running number, all is forgotten. The preparing warpgroup finds out and says
/// so in shared memory (-1 before); chunks that are on their way by then pass through unused. The others must look when
/// that chunk comes: later the number may be that of another item.
template <int Stages>
struct Skip {
  volatile int* from;
  int first, count;  ///< the item's chunks

  /// Of the chunk `running` or one before it, whose barrier has made `from` known.
  __device__ __forceinline__ bool skips(int running) const {
    const int at = *from;
    return at >= first && at <= running;
  }
  /// How many chunks are loaded once that is known.
  __device__ __forceinline__ int loaded() const { return min(count, *from - first + Stages); }
};

/// Log2-decays that all channels have, of tokens `lane` and 32 + `lane` of a chunk; two chunks ahead.
class TokenDecays {
 public:
  __device__ __forceinline__ TokenDecays(const LinearProblem& problem, const Item& item, const ItemChunks& chunks)
      : chunks_(chunks), constant_(problem.gate == Gate::Head ? headGate(problem, item.head) : 0) {
    if (problem.gate == Gate::Token) {
      data_ = static_cast<const float*>(problem.gates.data) + item.batch * problem.gates.batch +
              item.head * problem.gates.head;
      stride_ = problem.gates.token;
    }
    next_ = read(0);
    after_ = read(1);
  }
  __device__ __forceinline__ float2 take(int number) {
    const float2 now = next_;
    next_ = after_;
    after_ = read(number + 2);
    return make_float2(log2Decay(now.x), log2Decay(now.y));
  }

 private:
  static __device__ __forceinline__ float headGate(const LinearProblem& problem, int head) {
    return static_cast<const float*>(problem.gates.data)[head];
  }
  __device__ __forceinline__ float2 read(int number) const {
    const int64_t token = chunks_.token(number) + threadIdx.x % 32;
    return make_float2(readToken(number, token), readToken(number, token + 32));
  }
  __device__ __forceinline__ float readToken(int number, int64_t token) const {
    if (number >= chunks_.count || token >= chunks_.end) return 0;
    return data_ == nullptr ? constant_ : data_[token * stride_];
  }

  const ItemChunks& chunks_;
  const float* data_ = nullptr;
  int64_t stride_ = 0;
  float constant_;
  float2 next_, after_;
};

template <class T, GateKind Kind>
class StatesCta {
 public:
  using Layout = StatesShared<Kind>;
  static constexpr int kStages = Layout::kStages;

  __device__ __forceinline__ StatesCta(const StatesKernel& kernel, char* shared)
      : kernel_(kernel),
        problem_(kernel.pass.problem),
        shared_(shared),
        base_(sharedAddress(shared)),
        skipFrom_(reinterpret_cast<volatile int*>(shared + Layout::kSkipFrom)),
        pipeline_{base_ + Layout::kBarriers} {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      pipeline_.init();
      *skipFrom_ = -1;
    }
    __syncthreads();
    const int role = static_cast<int>(threadIdx.x) / kGroupThreads;
    if (role == kLoader) {
      if (threadIdx.x == 0) each([&](const Item& item, int first) { return load(item, first); });
    } else if (role == kPreparer) {
      each([&](const Item& item, int first) { return prepare(item, first); });
    } else {
      each([&](const Item& item, int first) { return multiply(item, first, role - kMultiplier); });
    }
  }

 private:
  /// act(item, running number of its first chunk), which returns how many chunks were loaded for it.
  template <class Act>
  __device__ __forceinline__ void each(const Act& act) {
    const int tiles = (problem_.dv + kMostColumns - 1) / kMostColumns;
    int first = 0;
    for (int64_t index = blockIdx.x; index < kernel_.items; index += gridDim.x) {
      first += act(itemAt(index, problem_, kernel_.pass.heads, kernel_.pass.segments, kernel_.segments, tiles), first);
    }
  }

  __device__ __forceinline__ int load(const Item& item, int first) {
    const ItemChunks chunks(problem_, item);
    const Skip<kStages> skip{skipFrom_, first, chunks.count};
    const int qk = qkHead(problem_, item.head), batch = static_cast<int>(item.batch);
    for (int number = 0; number < chunks.count; ++number) {
      const int running = first + number;
      pipeline_.waitFree(running);
      if (skip.skips(running - kStages)) return number;
      const uint32_t stage = base_ + running % kStages * Layout::kStageBytes;
      const uint32_t filled = pipeline_.filled(running);
      const int token = static_cast<int>(chunks.token(number));
      arriveExpecting(filled, Layout::kStageBytes);
      if (Kind != GateKind::Uniform) {
        loadBox(stage + Layout::kGates, kernel_.gates, filled, 0, item.head, token, batch);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int column = tile * kSwizzleColumns, at = tile * kTileBytes;
        loadBox(stage + Layout::kKeys + at, kernel_.keys, filled, column, qk, token, batch);
        loadBox(stage + Layout::kValues + at, kernel_.values, filled, item.tile * kMostColumns + column, item.head,
                token, batch);
      }
    }
    return chunks.count;
  }

  __device__ __forceinline__ int prepare(const Item& item, int first) {
    const ItemChunks chunks(problem_, item);
    const Skip<kStages> skip{skipFrom_, first, chunks.count};
    TokenDecays tokenDecays(problem_, item, chunks);
    float2 later = make_float2(0, 0);  // log2-decays of the chunks behind: of two channels, or, in x, of all
    bool skipping = false;
    int loaded = chunks.count;
    for (int number = 0; number < loaded; ++number) {
      const int running = first + number;
      char* const stage = shared_ + running % kStages * Layout::kStageBytes;
      pipeline_.waitFilled(running);
      if (!skipping) {
        const int others = chunks.others(chunks.token(number));
        if constexpr (Kind == GateKind::Uniform) {
          skipping = !decayKeys(stage, others, tokenDecays.take(number), later);
        } else {
          skipping = !decayKeys(stage, others, running % 2, later);
        }
        if (skipping) {
          *skipFrom_ = running;
          loaded = min(chunks.count, number + kStages);
        }
        if (others > 0) clearRows(stage + Layout::kValues, 0, others);
        fenceForAsync();
      }
      arrive(pipeline_.prepared(running));
    }
    if (item.tile == 0) putDecays(item, chunks.start >= 0, later);
    return loaded;
  }

  /// Keys times 2^(the log2-decays from after their tokens to the segment's end), 0 for the first `others`; `later`
  /// gets the chunk's. False, and nothing is done: all of it is forgotten.
  __device__ __forceinline__ bool decayKeys(char* stage, int others, int slot, float2& later) {
    const PrepareLane me;
    float2 decays[32];
    float2 own = make_float2(0, 0);
#pragma unroll
    for (int t = 0; t < 32; ++t) {
      decays[t] = log2Pair(readGates<Kind>(stage + Layout::kGates, 32 * me.half + t, me.channel));
      own = make_float2(own.x + decays[t].x, own.y + decays[t].y);
    }
    float2* const totals = reinterpret_cast<float2*>(shared_ + Layout::kTotals) + slot * kMostColumns;
    totals[me.half * 64 + me.pair] = own;
    const bool forgotten = (later.x < kForgottenLog2 && later.y < kForgottenLog2) || me.channel >= problem_.dk;
    if (!anyNamed(kPrepareBarrier, kGroupThreads, !forgotten)) return false;
    const float2 other = totals[(1 - me.half) * 64 + me.pair];
    float2 sum = me.half == 0 ? other : make_float2(0, 0);
#pragma unroll
    for (int t = 31; t >= 0; --t) {
      const float2 decay = decays[t];
      decays[t] = make_float2(later.x + sum.x, later.y + sum.y);
      sum = make_float2(sum.x + decay.x, sum.y + decay.y);
    }
    char* const keys[1] = {stage + Layout::kKeys};
    scaleTokens<T>(me, keys,
                   [&](int t, float2(&by)[1]) { by[0] = make_float2(exp2Fast(decays[t].x), exp2Fast(decays[t].y)); });
    clearTokens(me, keys[0], 0, others);
    later = make_float2(later.x + (own.x + other.x), later.y + (own.y + other.y));
    return true;
  }
  /// The same with one decay for all channels.
  __device__ __forceinline__ bool decayKeys(char* stage, int others, float2 decays, float2& later) {
    if (later.x < kForgottenLog2) return false;
    const PrepareLane me;
    const float2 after = make_float2(sumAfter(decays.x), sumAfter(decays.y));
    const float2 total =
        make_float2(__shfl_sync(0xffffffffU, after.x + decays.x, 0), __shfl_sync(0xffffffffU, after.y + decays.y, 0));
    const float factor = exp2Fast(later.x + (me.half == 0 ? total.y + after.x : after.y));  // of this lane's token
    char* const keys[1] = {stage + Layout::kKeys};
    if (problem_.gate != Gate::None) {
      scaleTokens<T>(me, keys, [&](int t, float2(&by)[1]) { by[0].x = by[0].y = __shfl_sync(0xffffffffU, factor, t); });
    }
    clearTokens(me, keys[0], 0, others);
    later.x += total.x + total.y;
    return true;
  }
  /// The sum over later lanes.
  static __device__ __forceinline__ float sumAfter(float own) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum = __shfl_down_sync(0xffffffffU, own, 1);
    if (lane == 31) sum = 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float more = __shfl_down_sync(0xffffffffU, sum, distance);
      if (lane + distance < 32) sum += more;
    }
    return sum;
  }
  __device__ __forceinline__ void putDecays(const Item& item, bool starts, float2 later) {
    const PrepareLane me;
    const int64_t map = mapIndex(item, problem_, kernel_.pass.segments);
    const int width = decayWidth(problem_);
    const auto put = [&](int channel, float log2) {
      const bool nothingLeft = starts || log2 < kForgottenLog2;
      if (channel < width) {
        kernel_.pass.maps.logDecays[map * width + channel] = nothingLeft ? -INFINITY : log2 / kLog2e;
      }
    };
    if (me.half != 0) return;
    if (Kind != GateKind::Uniform) {
      put(me.channel, later.x);
      put(me.channel + 1, later.y);
    } else if (me.pair == 0) {
      put(0, later.x);
    }
  }

  __device__ __forceinline__ int multiply(const Item& item, int first, int which) {
    const ItemChunks chunks(problem_, item);
    const Skip<kStages> skip{skipFrom_, first, chunks.count};
    float state[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] = 0;
    bool skipping = false;
    int loaded = chunks.count;
    for (int number = 0; number < loaded; ++number) {
      const int running = first + number;
      const uint32_t stage = base_ + running % kStages * Layout::kStageBytes;
      pipeline_.waitPrepared(running);
      if (!skipping && skip.skips(running)) {
        skipping = true;
        loaded = skip.loaded();
      }
      if (!skipping) {
        const Matrix values = columnsOf(stage + Layout::kValues + which * kTileBytes, kTileBytes);
        const Matrix keys = columnsOf(stage + Layout::kKeys, kTileBytes);
        pin(state);
        fenceProducts();
#pragma unroll
        for (int step = 0; step < kChunk / 16; ++step) {
          Product<T, 128>::template run<Lie::Across, Lie::Across>(state, values + step * kNextStepOfColumns,
                                                                  keys + step * kNextStepOfColumns, true);
        }
        commitProducts();
        waitProducts<0>();
        pin(state);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(pipeline_.free(running));
    }
    const int64_t map = mapIndex(item, problem_, kernel_.pass.segments);
    putState(kernel_.pass.maps.states + map * problem_.dk * problem_.dv, state, problem_, item.tile, which);
    return loaded;
  }

  const StatesKernel& kernel_;
  const LinearProblem& problem_;
  char* shared_;
  uint32_t base_;
  volatile int* skipFrom_;
  Pipeline<kStages> pipeline_;
};

template <class T, GateKind Kind>
__global__ void __launch_bounds__(kThreads, 1) statesKernel(const __grid_constant__ StatesKernel kernel) {
  extern __shared__ __align__(1024) char shared[];
  letNextKernelStart();
  StatesCta<T, Kind>(kernel, shared).run();
}

}  // namespace seqpar::attn::hopper
