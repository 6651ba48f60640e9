// Preparation of a chunk of pass 3 by a warpgroup, for channel decays. A thread has four channels and 16 tokens.
//
// With L the sum of log2-decays and M its value after the first 32 tokens, queries become q 2^(L - M) and keys k 2^(M -
// L), for the scores and for the state, which is relative to M during the chunk. For the scores they are more precise
// than T: narrow chunks use additional fp16 copies, wide ones the remainders of rounding to T. If the decays of half a
// chunk are too strong for both, the chunk is exact: blocks of 16 tokens, queries q 2^L with L from the block's start,
// keys k 2^(Lend - L), and scores within blocks from exponents of at most 0 (exact_scores_sm90.cuh). With two heads in
// bf16, exact chunks have a loop of their own (strong_channels_sm90.cuh), so that mild ones do not depend on its
// registers.
//
// If T is fp16, a chunk is narrow or exact. In a narrow one, queries and keys are also multiplied by powers of 2, so
// that the largest elements do not exceed the range with any decay, and the small ones have most digits. The state is
// multiplied by the keys' power, too, until the next chunk.
//
// Vectors of a stage: 0: factors of the state from the previous chunk's reference to this one's; 1: from this one's to
// the chunk's end; 2 ... 5: decays of an exact chunk's blocks.
#pragma once

#include "kernels/attn/linear/forward_sm90/exact_scores_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/powers_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/quads_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/strong_channels_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/sweeps_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// HeadCount: one head, or two, each in a panel of the queries' and keys' tiles. If a head's chunk is exact, the
/// other's is, too.
template <class T, GateKind Kind, int HeadCount = 1>
class ChannelTransform {
 public:
  using Layout = OutputsSharedFor<T, HeadCount>;

  /// endHead: the launch has the heads before this one.
  SEQPAR_DEVICE ChannelTransform(const LinearProblem& problem, char* shared, int endHead)
      : problem_(problem), shared_(shared), endHead_(endHead) {}

  SEQPAR_DEVICE int run(const Sweep& item, int first, const Pipeline<Layout::kStages>& pipeline) {
    ForwardChunks chunks(item);
    const int head = item.head + (HeadCount > 1 ? me_.tile : 0), channel = HeadCount > 1 ? 4 * me_.quad : me_.channel;
    rows_ = static_cast<const char*>(problem_.gates.data) +
            bytesOf(Kind) *
                (item.batch * problem_.gates.batch + head * problem_.gates.head + item.firstChannel() + channel);
    hasGates_ = item.firstChannel() + channel < problem_.dk && (HeadCount == 1 || head < endHead_);
    carries_ = false;
    Chunk chunk, next;
    const auto take = [&] { next = chunks.more() ? chunks.take() : Chunk(); };
    take();
    load(next);
    int running = first;
    for (; next.length > 0; ++running) {
      chunk = next;
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      const float4 own = sumUp(), other = shuffled(own), half = own + other;
      float4* const carries = carriesAt(running % 2);
      const float4* const before = carriesAt((running + 1) % 2);
      if (!kRaises && me_.quarter == 3) *carries = half;
      pipeline.waitFull(running);
      if (chunk.length < kChunk) clearOthers(stage, chunk.length);
      const float lowest = least(half);
      if constexpr (kRaises) findLargest<Layout>(stage, me_);
      const bool narrow = !any(!(lowest >= kNarrowLog2)), exact = !narrow && (kRaises || any(!(lowest >= kSafeLog2)));
      if constexpr (kStrong) {
        if (exact) {
          running = runStrong(chunks, next, running, pipeline) - 1;
          continue;
        }
      }
      Powers powers;
      if (kRaises && narrow) powers = powersOf<Layout, HeadCount, static_cast<int>(-kNarrowLog2)>(stage, me_.tile);
      if (kRaises && me_.quarter == 3) *carries = half + quadOf(-powers.keys);
      putVectors(stage, half, carries_ ? *before : make_float4(0, 0, 0, 0), powers, exact);
      if (threadIdx.x % kGroupThreads == 0)
        reinterpret_cast<int*>(shared_ + Layout::kExact)[running % Layout::kStages] = exact;
      carries_ = !exact;
      take();
      if (exact) {
        prepareExact(stage, chunk);
        load(next);
      } else {
        // L - M before the thread's tokens.
        const float4 start = me_.half == 0 ? (me_.quarter == 0 ? -1.0F * half : -1.0F * own)
                                           : (me_.quarter == 2 ? make_float4(0, 0, 0, 0) : other);
        if constexpr (kRaises) {
          prepareRaised(stage, start, powers, next);
        } else if (narrow) {
          prepareNarrow(stage, start, next);
        } else {
          prepareWide(stage, start, next);
        }
      }
      warpgroup::fenceProxyAsync();
      ptx::mbarrierArrive(pipeline.prepared(running));
    }
    return running - first;
  }

 private:
  static constexpr int kTokens = 16;  ///< per thread
  static constexpr bool kRaises = Numbers<T>::kRaises;
  /// Whether exact chunks have a loop of their own. One head leaves too few registers: both loops would spill.
  static constexpr bool kStrong = !kRaises && HeadCount > 1;
  /// Lower bound for half a chunk relative to its end or start: products with 2^64 do not overflow.
  static constexpr float kSafeLog2 = -64;
  /// Lower bound for scores in fp16; if it is T, too, for all operands.
  static constexpr float kNarrowLog2 = kRaises ? -12 : -8;

  /// Prepares exact chunks from `next` on, up to one that is not, whose gates are in sums_ then. Returns its running
  /// number.
  SEQPAR_DEVICE int runStrong(ForwardChunks& chunks, Chunk& next, int running,
                              const Pipeline<Layout::kStages>& pipeline) {
    load(next);  // again: their sums may be infinite
    float4 own = total();
    bool exact = true;
    while (exact) {
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      pipeline.waitFull(running);
      if (next.length < kChunk) clearOthers(stage, next.length);
      next = chunks.more() ? chunks.take() : Chunk();
      if (threadIdx.x % kGroupThreads == 0)
        reinterpret_cast<int*>(shared_ + Layout::kExact)[running % Layout::kStages] = 1;
      const auto* const carries =
          reinterpret_cast<const float*>(shared_ + Layout::kCarries + (running + 1) % 2 * Layout::kVectorBytes);
      const auto loadNext = [&] { return [this, rows = rowsOf(next)](int t) mutable { load<4>(rows, t); }; };
      StrongChunk<T>(shared_, stage).run(sums_, own, carries_ ? carries : nullptr, loadNext);
      carries_ = false;
      warpgroup::fenceProxyAsync();
      ptx::mbarrierArrive(pipeline.prepared(running));
      ++running;
      if (next.length > 0) own = total();
      exact = next.length > 0 && any(!(least(own + shuffled(own)) >= kSafeLog2));
    }
    me_ = QuadLane::opaque();
    return running;
  }

  SEQPAR_DEVICE float* inverses(char* stage) const { return reinterpret_cast<float*>(stage + Layout::kInverses); }
  /// Source of a chunk's gates.
  struct Rows {
    const char* at;  ///< the next row
    int64_t stride;
    int length;
  };
  SEQPAR_DEVICE Rows rowsOf(const Chunk& chunk) const {
    const int64_t stride = bytesOf(Kind) * problem_.gates.token;
    const int first = (kStrong ? QuadLane::opaque() : me_).firstToken();
    return {rows_ + (chunk.token + first) * stride, stride, hasGates_ ? chunk.length - first : 0};
  }
  /// Loads `Count` gates of a chunk, starting at the thread's token `first`; 0 for invalid tokens and channels.
  template <int Count>
  SEQPAR_DEVICE void load(Rows& from, int first) {
#pragma unroll
    for (int t = first; t < first + Count; ++t) {
      sums_[t] = readQuad<Kind>(from.at, t < from.length);
      from.at += from.stride;
    }
  }
  SEQPAR_DEVICE void load(const Chunk& chunk) {
    Rows from = rowsOf(chunk);
    load<kTokens>(from, 0);
  }
  /// Replaces gates by their sums from the thread's first token on; returns the last sum, as log2.
  SEQPAR_DEVICE float4 sumUp() {
#pragma unroll
    for (int t = 1; t < kTokens; ++t) sums_[t] = sums_[t - 1] + sums_[t];
    return kLog2e * sums_[kTokens - 1];
  }
  /// The sum of gates, as log2.
  SEQPAR_DEVICE float4 total() const {
    float4 sum = sums_[0];
#pragma unroll
    for (int t = 1; t < kTokens; ++t) sum = sum + sums_[t];
    return kLog2e * sum;
  }
  /// The value of the thread with the half's other tokens.
  static SEQPAR_DEVICE float4 shuffled(float4 x) {
    constexpr unsigned kAll = 0xffffffffU;
    return make_float4(__shfl_xor_sync(kAll, x.x, 16), __shfl_xor_sync(kAll, x.y, 16), __shfl_xor_sync(kAll, x.z, 16),
                       __shfl_xor_sync(kAll, x.w, 16));
  }

  SEQPAR_DEVICE float4* carriesAt(int which) const {
    return reinterpret_cast<float4*>(shared_ + Layout::kCarries + which * Layout::kVectorBytes + 4 * me_.channel);
  }
  SEQPAR_DEVICE float4* vector(char* stage, int number) const {
    return reinterpret_cast<float4*>(stage + Layout::kVectors + number * Layout::kVectorBytes + 4 * me_.channel);
  }
  SEQPAR_DEVICE void putVectors(char* stage, float4 half, float4 before, const Powers& powers, bool exact) {
    if (exact) half = make_float4(0, 0, 0, 0);
    if (me_.quarter == 0) {
      *vector(stage, 0) = exp2Quad(before + (kRaises ? half + quadOf(powers.keys) : half));
    } else if (me_.quarter == 2) {
      *vector(stage, 1) = exp2Quad(kRaises ? half + quadOf(-powers.keys) : half);
    }
    if (kRaises && me_.quarter == 0 && me_.quad == 0 && (HeadCount > 1 || me_.tile == 0)) {
      reinterpret_cast<float*>(stage + Layout::kPowers)[me_.tile] = ptx::ex2Approx(-powers.queries - powers.keys);
    }
  }

  SEQPAR_DEVICE bool any(bool mine) const {
    return ptx::barrierRedOr(kTransformBarrier, kGroupThreads, mine);
  }

  /// Multiplies a thread's elements of queries and keys by factors(t, by). Calls keep(matrix, t, offset, products,
  /// words) with every four products, unrounded and rounded; `offset` is their byte offset in the matrix. Calls done(t)
  /// after each kAtOnce tokens. Their loads are issued together: a load could not pass a store.
  template <class Keep, class Factors, class Done>
  SEQPAR_DEVICE void scale(char* stage, const Keep& keep, const Factors& factors, const Done& done) const {
    constexpr int kAtOnce = 4;
    char* const matrices[2] = {stage + Layout::kQueries, stage + Layout::kKeys};
    const int start = ptx::opaque(me_.offset(me_.firstToken()));
    int at[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i] = (start ^ i << 4) + i * kRowBytes;
#pragma unroll
    for (int t = 0; t < kTokens; t += kAtOnce) {
      const auto offset = [&](int i) { return at[(t + i) % 8] + (t + i) / 8 * 8 * kRowBytes; };
      uint2 words[kAtOnce][2];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int m = 0; m < 2; ++m) words[i][m] = *reinterpret_cast<const uint2*>(matrices[m] + offset(i));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float4 by[2];
        factors(t + i, by);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float2 a = Numbers<T>::unpack(words[i][m].x), b = Numbers<T>::unpack(words[i][m].y);
          const float4 products = make_float4(a.x, a.y, b.x, b.y) * by[m];
          words[i][m] = packed<T>(products);
          keep(m, t + i, offset(i), products, words[i][m]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int m = 0; m < 2; ++m) *reinterpret_cast<uint2*>(matrices[m] + offset(i)) = words[i][m];
      }
      done(t, kAtOnce);
    }
  }
  template <class To>
  static SEQPAR_DEVICE uint2 packed(float4 x) {
    return make_uint2(Numbers<To>::pack(x.x, x.y), Numbers<To>::pack(x.z, x.w));
  }

  /// Replaces used gates by those of the next chunk. `keep`: as in scale().
  template <class Keep>
  SEQPAR_DEVICE void scaleSafe(char* stage, float4 start, const Powers& powers, const Chunk& next, const Keep& keep) {
    [[maybe_unused]] Rows rows = rowsOf(next);
    scale(
        stage, keep,
        [&](int t, float4(&by)[2]) {
          const float4 sum = fma(kLog2e, sums_[t], start);  // L - M
          by[0] = exp2Quad(kRaises ? sum + quadOf(powers.queries) : sum);
          by[1] = exp2Quad(kRaises ? -1.0F * sum + quadOf(powers.keys) : -1.0F * sum);
        },
        [&]([[maybe_unused]] int t, int) { load<4>(rows, t); });
  }
  SEQPAR_DEVICE char* fine(int matrix) const {
    return shared_ + Layout::kFine + matrix * kKeyBytes;
  }

  /// Scores from queries and keys in fp16, which has three bits more than bf16. If some do not fit (above 65504), or
  /// are so small that they have fewer bits (one of 16 tokens is checked), the scores are computed from T.
  SEQPAR_DEVICE void prepareNarrow(char* stage, float4 start, const Chunk& next) {
    float greatest[2] = {0, 0};
    scaleSafe(stage, start, {}, next, [&](int matrix, int t, int offset, float4 products, uint2) {
      *reinterpret_cast<uint2*>(fine(matrix) + offset) = packed<Float16>(products);
      if (t == 0) greatest[matrix] = largest(products);
    });
    warpgroup::fenceProxyAsync();
    Scores scores;
    bool fit = any(fminf(greatest[0], greatest[1]) >= kSmallest);
    if (fit) {
      makeScores(scores, [&] { addAll<Float16>(scores, fine(0), fine(1), false); });
      float sum = 0;
#pragma unroll
      for (const float score : scores) sum = fmaf(score, 0, sum);  // 0, or NaN
      fit = !any(sum != 0);
    }
    if (!fit) {
      makeScores(scores, [&] { addAll<T>(scores, stage + Layout::kQueries, stage + Layout::kKeys, false); });
    }
    putAll(stage, scores);
  }
  static constexpr float kSmallest = 0x1p-6F;

  SEQPAR_DEVICE void prepareRaised(char* stage, float4 start, const Powers& powers, const Chunk& next) {
    scaleSafe(stage, start, powers, next, [](int, int, int, float4, uint2) {});
    warpgroup::fenceProxyAsync();
    any(false);
    Scores scores;
    makeScores(scores, [&] { addAll<T>(scores, stage + Layout::kQueries, stage + Layout::kKeys, false); });
    putAll(stage, scores);
  }

  /// For exponents beyond the range of fp16: adds the products of the rounding remainders of queries and keys.
  SEQPAR_DEVICE void prepareWide(char* stage, float4 start, const Chunk& next) {
    scaleSafe(stage, start, {}, next, [&](int matrix, int, int offset, float4 products, uint2 words) {
      const float2 a = Numbers<T>::unpack(words.x), b = Numbers<T>::unpack(words.y);
      *reinterpret_cast<uint2*>(fine(matrix) + offset) =
          packed<T>(make_float4(products.x - a.x, products.y - a.y, products.z - b.x, products.w - b.y));
    });
    warpgroup::fenceProxyAsync();
    any(false);
    Scores scores;
    makeScores(scores, [&] {
      addAll<T>(scores, stage + Layout::kQueries, stage + Layout::kKeys, false);
      addAll<T>(scores, fine(0), stage + Layout::kKeys, true);
      addAll<T>(scores, stage + Layout::kQueries, fine(1), true);
    });
    putAll(stage, scores);
  }
  using Scores = float[HeadCount * 32];
  static SEQPAR_DEVICE auto& ofHead(Scores& scores, int head) {
    return reinterpret_cast<float(&)[32]>(scores[head * 32]);
  }
  /// addScores() of all heads.
  template <class Image>
  static SEQPAR_DEVICE void addAll(Scores& scores, const char* queries, const char* keys, bool add) {
#pragma unroll
    for (int head = 0; head < HeadCount; ++head) {
      addScores<Image, Shape::kSteps / HeadCount>(ofHead(scores, head), queries + head * kTileBytes,
                                                  keys + head * kTileBytes, add);
    }
  }
  static SEQPAR_DEVICE void putAll(char* stage, Scores& scores) {
#pragma unroll
    for (int head = 0; head < HeadCount; ++head) {
      putScores<T, Layout>(stage, ofHead(scores, head), head,
                           kRaises ? reinterpret_cast<const float*>(stage + Layout::kPowers)[head] : 1,
                           kStrong ? opaqueThread() : static_cast<int>(threadIdx.x));
    }
  }

  static SEQPAR_DEVICE float4 bounded(float4 x) {
    return make_float4(ptx::maxNan(x.x, kLeastLog2), ptx::maxNan(x.y, kLeastLog2), ptx::maxNan(x.z, kLeastLog2),
                       ptx::maxNan(x.w, kLeastLog2));
  }

  /// A thread's tokens are one block.
  SEQPAR_DEVICE void prepareExact(char* stage, const Chunk& chunk) {
    char* const scores = stage + Layout::kScores;
    for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < HeadCount * kTileBytes / 16; i += kGroupThreads) {
      reinterpret_cast<uint4*>(scores)[i] = make_uint4(0, 0, 0, 0);
    }
    load(chunk);  // reload: their sums may be infinite
    char* const logs = shared_ + Layout::kLogs;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      *reinterpret_cast<uint2*>(logs + me_.offset(me_.firstToken() + t)) = packed<Float16>(bounded(kLog2e * sums_[t]));
    }
    ptx::barrierSync(kTransformBarrier, kGroupThreads);
#pragma unroll 1
    for (int head = 0; head < HeadCount; ++head) {
      ExactScores<T, Shape::kSteps / HeadCount>(stage, logs, inverses(stage) + head * kChunk, head,
                                                ptx::opaque(static_cast<int>(threadIdx.x)))
          .run();
    }
    ptx::barrierSync(kTransformBarrier, kGroupThreads);
    load(chunk);  // again: the scores need the registers
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums_[t] = sum = sum + bounded(kLog2e * sums_[t]);
    *vector(stage, 2 + me_.quarter) = exp2Quad(sum);
    scale(
        stage, [](int, int, int, float4, uint2) {},
        [&](int t, float4(&by)[2]) {
          by[0] = exp2Quad(sums_[t]);
          by[1] = exp2Quad(sums_[kTokens - 1] + -1.0F * sums_[t]);
        },
        [](int, int) {});
  }
  const LinearProblem& problem_;
  char* shared_;
  QuadLane me_;
  const char* rows_ = nullptr;
  int endHead_;
  bool hasGates_ = false;  ///< whether the thread's channels of the item exist
  bool carries_ = false;   ///< whether the previous chunk left the state relative to its middle
  float4 sums_[kTokens];   ///< gates, later their sums
};

}  // namespace seqpar::attn::forward_sm90
