// The pipeline of chunks of 64 tokens in a CTA of four warpgroups: one thread loads them, one warpgroup prepares them,
// two multiply, each with 64 columns of v.
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/arch/warpgroup.h"
#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/forward_sm90/shape_sm90.h"
#include "kernels/attn/linear/numbers.cuh"
#include "kernels/attn/linear/tile.cuh"
#include "kernels/attn/linear/work.h"

namespace seqpar::attn::forward_sm90 {

using ptx::swizzled;

constexpr int kTileBytes = kChunk * kRowBytes;
/// Of a chunk's queries or keys, and of its values.
constexpr int kKeyBytes = Shape::kKeyTiles * kTileBytes, kValueBytes = Shape::kValueTiles * kTileBytes;
constexpr int kThreads = (2 + kConsumers) * kGroupThreads;
constexpr int kProducer = 0, kTransform = 1, kConsumer = 2;  ///< warpgroups; kConsumer + 1 multiplies too
/// Named barriers; __syncthreads() has 0.
enum Barrier {
  kTransformBarrier = 1,  ///< of the transform warpgroup
  kConsumerBarrier = 2,   ///< of the first consumer; 3: of the second one
};
static_assert(kTransformBarrier < kConsumerBarrier && kConsumerBarrier + kConsumers <= ptx::kNamedBarriers);

/// Form of decays: one value for all channels, or one per channel, fp32 or bf16.
enum class GateKind { Uniform, Full, Half };
SEQPAR_BOTH_INLINE constexpr int bytesOf(GateKind kind) {
  return kind == GateKind::Uniform ? 0 : (kind == GateKind::Full ? 4 : 2);
}

/// The barriers of `Stages` stages: full (by the TMA), prepared, empty. Chunks are identified by their running number
/// over all items of a CTA.
template <int Stages>
struct Pipeline {
  static constexpr int kBarrierBytes = 3 * 8 * Stages;
  uint32_t barriers;

  SEQPAR_DEVICE uint32_t full(int number) const { return barriers + 24 * (number % Stages); }
  SEQPAR_DEVICE uint32_t prepared(int number) const { return full(number) + 8; }
  SEQPAR_DEVICE uint32_t empty(int number) const { return full(number) + 16; }
  static SEQPAR_DEVICE int parity(int number) { return number / Stages & 1; }

  /// Called by one thread, before any other thread uses the barriers. `writers`: threads that arrive on a stage's
  /// `full` besides the one that loads it.
  SEQPAR_DEVICE void init(int writers = 0) const {
    for (int stage = 0; stage < Stages; ++stage) {
      ptx::mbarrierInit(full(stage), 1 + writers);
      ptx::mbarrierInit(prepared(stage), kGroupThreads);
      ptx::mbarrierInit(empty(stage), kConsumers * kGroupThreads / 32);
    }
    ptx::fenceMbarrierInit();
  }
  SEQPAR_DEVICE void waitFull(int number) const { ptx::mbarrierWaitParity(full(number), parity(number)); }
  SEQPAR_DEVICE void waitPrepared(int number) const { ptx::mbarrierWaitParity(prepared(number), parity(number)); }
  /// Waits until the stage's previous chunk has been multiplied.
  SEQPAR_DEVICE void waitFree(int number) const {
    if (number >= Stages) ptx::mbarrierWaitParity(empty(number), parity(number) ^ 1);
  }
};

/// A transform thread's part of a chunk: two channels, and half of the tokens.
struct PrepareLane {
  static_assert(kGroupThreads == 2 * Shape::kPairs, "each thread has a pair of channels over half a chunk");
  int half, pair, channel;  ///< tokens from 32 * half on; channels `channel` = 2 * pair and the next

  SEQPAR_DEVICE PrepareLane()
      : half(static_cast<int>(threadIdx.x) / Shape::kPairs % 2),
        pair(static_cast<int>(threadIdx.x) % Shape::kPairs),
        channel(2 * pair) {}
  /// The byte offset, in a matrix, of the two channels of a token.
  SEQPAR_DEVICE int offset(int token) const { return pair / 32 * kTileBytes + swizzled(token, pair % 32 * 4); }
};

/// Transform warpgroup: zero-fills the rows of a matrix after the item's tokens, before any is read: they may belong to
/// another sequence, and be non-finite.
SEQPAR_DEVICE void clearRows(char* matrix, int begin) {
  static_assert(Shape::kKeyTiles == Shape::kValueTiles, "it clears matrices of one size");
  const PrepareLane me;
  for (int row = begin + me.half; row < kChunk; row += 2) *reinterpret_cast<uint32_t*>(matrix + me.offset(row)) = 0;
}

/// Multiplies a transform thread's elements of `Count` matrices by factors(t, by), t from 0 to 31 in order; calls
/// done(t) after each 8. Loads of 8 tokens are issued together: a load could not pass a store.
template <class T, int Count, class Factors, class Done>
SEQPAR_DEVICE void scaleTokens(const PrepareLane& me, char* const (&matrices)[Count], const Factors& factors,
                               const Done& done) {
  constexpr int kAtOnce = 8;
  const int start = ptx::opaque(me.offset(0)) + me.half * (kTileBytes / 2);
  int at[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) at[i] = (start ^ i << 4) + i * kRowBytes;
#pragma unroll
  for (int t = 0; t < 32; t += kAtOnce) {
    const auto word = [&](int matrix, int i) {
      return reinterpret_cast<uint32_t*>(matrices[matrix] + at[i] + t * kRowBytes);
    };
    uint32_t words[kAtOnce][Count];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int m = 0; m < Count; ++m) words[i][m] = *word(m, i);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float2 by[Count];
      factors(t + i, by);
#pragma unroll
      for (int m = 0; m < Count; ++m) {
        const float2 two = Numbers<T>::unpack(words[i][m]);
        words[i][m] = Numbers<T>::pack(two.x * by[m].x, two.y * by[m].y);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int m = 0; m < Count; ++m) *word(m, i) = words[i][m];
    }
    done(t);
  }
}
template <class T, int Count, class Factors>
SEQPAR_DEVICE void scaleTokens(const PrepareLane& me, char* const (&matrices)[Count], const Factors& factors) {
  scaleTokens<T>(me, matrices, factors, [](int) {});
}

/// Eight elements times a factor.
template <class T>
SEQPAR_DEVICE uint4 scaled(uint4 vector, float factor) {
  const auto scale = [&](uint32_t word) {
    const float2 two = Numbers<T>::unpack(word);
    return Numbers<T>::pack(two.x * factor, two.y * factor);
  };
  return make_uint4(scale(vector.x), scale(vector.y), scale(vector.z), scale(vector.w));
}

/// Transform warpgroup: multiplies tokens of a matrix by their factors; lane t of each warp has the factors of tokens t
/// and 32 + t. Accesses 16 bytes at a time, because all channels share a factor.
template <class T>
SEQPAR_DEVICE void scaleRows(char* matrix, float2 factors) {
  constexpr int kRowsAtOnce = kGroupThreads / 8;
  const int thread = ptx::opaque(static_cast<int>(threadIdx.x) % kGroupThreads), row = thread / 8;
  char* const at = matrix + swizzled(row, thread % 8 * 16);
#pragma unroll
  for (int tile = 0; tile < Shape::kKeyTiles; ++tile) {
    uint4 vectors[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      vectors[i] = *reinterpret_cast<const uint4*>(at + tile * kTileBytes + i * kRowsAtOnce * kRowBytes);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = row + i * kRowsAtOnce;
      const float factor = __shfl_sync(0xffffffffU, i < 2 ? factors.x : factors.y, token % 32);
      vectors[i] = scaled<T>(vectors[i], factor);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint4*>(at + tile * kTileBytes + i * kRowsAtOnce * kRowBytes) = vectors[i];
    }
  }
}

/// Calls act(element of a consumer's state, channel of k, column of v in the CTA's tile).
template <int Count, class Act>
SEQPAR_DEVICE void eachOfState(float (&state)[Count], int which, const Act& act) {
  const int thread = ptx::opaque(static_cast<int>(threadIdx.x)), lane = thread % 32, warp = thread / 32 % 4;
  const int row = kSwizzleColumns * which + 16 * warp + lane / 4;
#pragma unroll
  for (int i = 0; i < Count; ++i) act(state[i], 8 * (i / 4) + 2 * (lane % 4) + i % 2, row + 8 * (i / 2 % 2));
}

/// Packed (register) layout, for memory that only this layout reads: [tile][which][kOctets][thread], 4 elements each.
SEQPAR_DEVICE int64_t packedOffset(int tile, int which) {
  return (int64_t{tile} * kConsumers + which) * Shape::kStateElements * kGroupThreads +
         4 * ptx::opaque(static_cast<int>(threadIdx.x) % kGroupThreads);
}
SEQPAR_DEVICE void putPacked(float* to, const Shape::State& state, int tile, int which) {
  auto* const at = reinterpret_cast<float4*>(to + packedOffset(tile, which));
#pragma unroll
  for (int j = 0; j < Shape::kOctets; ++j) {
    at[j * kGroupThreads] = make_float4(state[4 * j], state[4 * j + 1], state[4 * j + 2], state[4 * j + 3]);
  }
}
SEQPAR_DEVICE void getPacked(Shape::State& state, const float* from, int tile, int which) {
  const auto* const at = reinterpret_cast<const float4*>(from + packedOffset(tile, which));
#pragma unroll
  for (int j = 0; j < Shape::kOctets; ++j) {
    const float4 four = at[j * kGroupThreads];
    state[4 * j] = four.x;
    state[4 * j + 1] = four.y;
    state[4 * j + 2] = four.z;
    state[4 * j + 3] = four.w;
  }
}

/// Stores a consumer's part of a state, with channels from `firstChannel` on, to [dk][dv] in device memory.
template <int Count>
SEQPAR_DEVICE void putState(float* to, float (&state)[Count], const LinearProblem& problem, int firstChannel, int tile,
                            int which) {
  const int values = problem.dv - tile * Shape::kColumns;
  float* const from = to + int64_t{firstChannel} * problem.dv + tile * Shape::kColumns;
  eachOfState(state, which, [&](float& number, int channel, int column) {
    if (firstChannel + channel < problem.dk && column < values) from[channel * problem.dv + column] = number;
  });
}

}  // namespace seqpar::attn::forward_sm90
