// How a warpgroup prepares a chunk of pass 3 for decays of each channel. A thread has two channels and 32 tokens.
//
// With L the sum of log2-decays and M what it is after the first 32 tokens, queries become q 2^(L - M) and keys
// k 2^(M - L), for the scores as for the state, which has M as its reference during the chunk. Where a half's decays
// are too strong for that, the chunk is exact: blocks of 16 tokens, queries q 2^L with L from the block's start, keys
// k 2^(Lend - L), and scores within blocks, from exponents of at most 0.
//
// Vectors of a stage: 0: what takes the state from the reference of the chunk before to this one's; 1: from this one's
// to the chunk's end; 2 ... 5: decays of an exact chunk's blocks.
#pragma once

#include "kernels/attn/linear/hopper/outputs_shared.cuh"

namespace seqpar::attn::hopper {

template <class T, GateKind Kind>
class ChannelPreparer {
 public:
  using Layout = OutputsShared;

  __device__ __forceinline__ ChannelPreparer(const LinearProblem& problem, char* shared)
      : problem_(problem), shared_(shared) {}

  __device__ __forceinline__ int run(const Item& item, int first, const Pipeline<Layout::kStages>& pipeline) {
    ForwardChunks chunks(problem_, item);
    rows_ = static_cast<const char*>(problem_.gates.data) +
            bytesOf(Kind) * (item.batch * problem_.gates.batch + item.head * problem_.gates.head + me_.channel);
    carries_ = false;
    Chunk chunk, next;
    const auto take = [&] { next = chunks.more() ? chunks.take() : Chunk(); };
    take();
    load(next);
    int running = first;
    for (; next.length > 0; ++running) {
      chunk = next;
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      const float2 own = toLog2();
      float2* const carries = reinterpret_cast<float2*>(shared_ + Layout::kCarries) + running % 2 * 64 + me_.pair;
      const float2* const before =
          reinterpret_cast<float2*>(shared_ + Layout::kCarries) + (running + 1) % 2 * 64 + me_.pair;
      if (me_.half == 1) *carries = own;
      pipeline.waitFilled(running);
      const bool exact = anyNamed(kPrepareBarrier, kGroupThreads, !(own.x >= kSafeLog2 && own.y >= kSafeLog2));
      putVectors(stage, own, carries_ ? *before : make_float2(0, 0), exact);
      if (threadIdx.x % kGroupThreads == 0)
        reinterpret_cast<int*>(shared_ + Layout::kExact)[running % Layout::kStages] = exact;
      carries_ = !exact;
      if (chunk.length < kChunk) clearRows(stage + Layout::kValues, chunk.length, kChunk);
      take();
      if (exact) {
        prepareExact(stage, chunk.length);
        load(next);
      } else {
        scaleSafe(stage, own, chunk.length, next);
        warpgroup::publish();
        syncNamed(kPrepareBarrier, kGroupThreads);
        float scores[32];
        multiplyScores<T>(scores, stage);
        putScores<T>(stage, scores);
      }
      warpgroup::publish();
      arrive(pipeline.prepared(running));
    }
    return running - first;
  }

 private:
  /// Half a chunk may be taken relative to its end or start down to this: what is multiplied by 2^64 fits.
  static constexpr float kSafeLog2 = -64;

  /// Where a chunk's gates come from.
  struct Rows {
    const char* at;  ///< the next one
    int64_t stride;
    int length;
  };
  __device__ __forceinline__ Rows rowsOf(const Chunk& chunk) const {
    const int64_t stride = bytesOf(Kind) * problem_.gates.token;
    return {rows_ + (chunk.token + 32 * me_.half) * stride, stride,
            me_.channel < problem_.dk ? chunk.length - 32 * me_.half : 0};
  }
  /// `Count` more of a chunk's gates, from the thread's token `first` on; 0 for tokens and channels that are not there.
  template <int Count>
  __device__ __forceinline__ void load(Rows& from, int first) {
#pragma unroll
    for (int t = first; t < first + Count; ++t) {
      gates_[t] = readPair(from.at, t < from.length);
      from.at += from.stride;
    }
  }
  __device__ __forceinline__ void load(const Chunk& chunk) {
    Rows from = rowsOf(chunk);
    load<32>(from, 0);
  }
  /// Ordered as written, so that addresses need not be kept.
  static __device__ __forceinline__ float2 readPair(const char* at, bool there) {
    float2 two;
    if constexpr (Kind == GateKind::Full) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
          "@p ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];\n}"
          : "=&f"(two.x), "=&f"(two.y)
          : "l"(at), "r"(there ? 1 : 0));
    } else {
      uint32_t word;
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0;\n"
          "@p ld.global.nc.L1::no_allocate.u32 %0, [%1];\n}"
          : "=&r"(word)
          : "l"(at), "r"(there ? 1 : 0));
      two = Numbers<Bfloat16>::unpack(word);
    }
    return two;
  }

  /// Gates become log2-decays; their sum.
  __device__ __forceinline__ float2 toLog2() {
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      gates_[i] = log2Pair(gates_[i]);
      sum = make_float2(sum.x + gates_[i].x, sum.y + gates_[i].y);
    }
    return sum;
  }

  __device__ __forceinline__ float2* vector(char* stage, int number) const {
    return reinterpret_cast<float2*>(stage + Layout::kVectors + number * Layout::kVectorBytes) + me_.pair;
  }
  __device__ __forceinline__ void putVectors(char* stage, float2 own, float2 before, bool exact) {
    if (exact) own = make_float2(0, 0);
    if (me_.half == 0) {
      *vector(stage, 0) = make_float2(exp2Fast(before.x + own.x), exp2Fast(before.y + own.y));
    } else {
      *vector(stage, 1) = make_float2(exp2Fast(own.x), exp2Fast(own.y));
    }
  }

  /// As each 8 gates have been used, those of the next chunk take their place.
  __device__ __forceinline__ void scaleSafe(char* stage, float2 own, int length, const Chunk& next) {
    float2 sum = me_.half == 0 ? make_float2(-own.x, -own.y) : make_float2(0, 0);  // L - M
    char* const matrices[2] = {stage + Layout::kQueries, stage + Layout::kKeys};
    Rows rows = rowsOf(next);
    scaleTokens<T>(
        me_, matrices,
        [&](int t, float2(&by)[2]) {
          sum = make_float2(sum.x + gates_[t].x, sum.y + gates_[t].y);
          by[0] = make_float2(exp2Fast(sum.x), exp2Fast(sum.y));
          by[1] = make_float2(exp2Fast(-sum.x), exp2Fast(-sum.y));
        },
        [&](int t) { load<8>(rows, t); });
    clearTokens(me_, matrices[1], length, kChunk);
  }

  __device__ __forceinline__ void prepareExact(char* stage, int length) {
    constexpr int kBlock = kBlockTokens;
    char* const scores = stage + Layout::kScores;
    for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < kTileBytes / 16; i += kGroupThreads) {
      reinterpret_cast<uint4*>(scores)[i] = make_uint4(0, 0, 0, 0);
    }
    char* const sums = shared_ + Layout::kSums + me_.half * kBlock * Layout::kVectorBytes;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int block = 2 * me_.half + r, pair = hide(me_.pair);
      syncNamed(kPrepareBarrier, kGroupThreads);
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int t = 0; t < kBlock; ++t) {
        float2& gate = gates_[kBlock * r + t];
        gate = sum = make_float2(sum.x + gate.x, sum.y + gate.y);
        *reinterpret_cast<float2*>(sums + sumAt(t, pair)) = sum;
      }
      *vector(stage, 2 + block) = make_float2(exp2Fast(sum.x), exp2Fast(sum.y));
      syncNamed(kPrepareBarrier, kGroupThreads);
      scoreBlock(stage, sums, block);
    }
    syncNamed(kPrepareBarrier, kGroupThreads);
    char* const matrices[2] = {stage + Layout::kQueries, stage + Layout::kKeys};
    scaleTokens<T>(me_, matrices, [&](int t, float2(&by)[2]) {
      const float2 sum = gates_[t], end = gates_[t / kBlock * kBlock + kBlock - 1];
      by[0] = make_float2(exp2Fast(sum.x), exp2Fast(sum.y));
      by[1] = make_float2(exp2Fast(end.x - sum.x), exp2Fast(end.y - sum.y));
    });
    clearTokens(me_, matrices[1], length, kChunk);
  }
  static __device__ __forceinline__ int sumAt(int t, int pair) {
    return t * Layout::kVectorBytes + (8 * pair ^ (t & 7) << 4);
  }

  /// The scores within a block: each of 64 threads has a query and four keys.
  __device__ __forceinline__ void scoreBlock(char* stage, const char* sums, int block) const {
    const int thread = hide(static_cast<int>(threadIdx.x)), i = thread % 16, firstKey = thread % 64 / 16;
    float scores[4] = {};
#pragma unroll 2
    for (int pair = 0; pair < 64; ++pair) {
      const auto numbers = [&](int matrix, int t) {
        const int at = pair / 32 * kTileBytes + swizzled(16 * block + t, pair % 32 * 4);
        return Numbers<T>::unpack(*reinterpret_cast<const uint32_t*>(stage + matrix + at));
      };
      const float2 query = numbers(Layout::kQueries, i);
      const float2 ofQuery = *reinterpret_cast<const float2*>(sums + sumAt(i, pair));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = firstKey + 4 * n;
        const float2 key = numbers(Layout::kKeys, j);
        const float2 ofKey = *reinterpret_cast<const float2*>(sums + sumAt(j, pair));
        scores[n] = fmaf(query.x * key.x, exp2Fast(fminf(ofQuery.x - ofKey.x, 0)), scores[n]);
        scores[n] = fmaf(query.y * key.y, exp2Fast(fminf(ofQuery.y - ofKey.y, 0)), scores[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int j = firstKey + 4 * n;
      const uint32_t word = Numbers<T>::pack(j > i ? 0 : scores[n], 0);
      const int at = swizzled(16 * block + i, 2 * (16 * block + j));
      *reinterpret_cast<uint16_t*>(stage + Layout::kScores + at) = static_cast<uint16_t>(word);
    }
  }

  const LinearProblem& problem_;
  char* shared_;
  PrepareLane me_;
  const char* rows_ = nullptr;
  bool carries_ = false;  ///< whether the chunk before left the state with its middle as the reference
  float2 gates_[32];
};

}  // namespace seqpar::attn::hopper
