// Channel log-decays in shared memory. Rows have space for fp32. Channels are in groups of kGroup, fp32 or bf16, of
// kGroupBytes each; one warp reads a group and may reuse its memory afterwards.
#pragma once

#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/numbers.cuh"
#include "kernels/attn/linear/shape.h"
#include "kernels/attn/linear/tile.cuh"

namespace seqpar::attn {

template <class Shape>
struct GateTile {
  static constexpr int kPitch = 4 * Shape::kDk;
  static constexpr int kBytes = kStageTokens * kPitch + (kStageTokens / 8 - 1) * 64;
  static constexpr int kGroupBytes = 4 * Shape::kGroup;

  /// The byte offset of a group's channels in a row.
  static SEQPAR_DEVICE int offset(int row, int group) { return row * kPitch + (row >> 3) * 64 + group * kGroupBytes; }

  static SEQPAR_DEVICE void load(uint32_t to, const char* from, int64_t rowStride, int rows, int columns, bool full) {
    if (full) {
      load<4>(to, from, rowStride, rows, columns);
    } else {
      load<2>(to, from, rowStride, rows, columns);
    }
  }

  /// The log2-decays of this lane's two channels of a group, for its tokens.
  static SEQPAR_DEVICE void read(float2 (&decays)[Shape::kLaneTokens], const char* tile, int group, int lane,
                                 bool full) {
    const int pair = lane % Shape::kPairs;
    const char* const from = tile + offset(lane / Shape::kPairs * Shape::kLaneTokens, group);
    if (full) {
#pragma unroll
      for (int t = 0; t < Shape::kLaneTokens; ++t) {
        decays[t] = log2Pair(*reinterpret_cast<const float2*>(from + offset(t, 0) + pair * 8));
      }
    } else {
#pragma unroll
      for (int t = 0; t < Shape::kLaneTokens; ++t) {
        decays[t] =
            log2Pair(Numbers<Bfloat16>::unpack(*reinterpret_cast<const uint32_t*>(from + offset(t, 0) + pair * 4)));
      }
    }
  }

 private:
  template <int Bytes>
  static SEQPAR_DEVICE void load(uint32_t to, const char* from, int64_t rowStride, int rows, int columns) {
    constexpr int kOfVector = 16 / Bytes;
    constexpr int kVectors = Shape::kDk / kOfVector;
    constexpr int kRowsAtOnce = Shape::kThreads / kVectors;
    const int channel = static_cast<int>(threadIdx.x) % kVectors * kOfVector;
    const int first = static_cast<int>(threadIdx.x) / kVectors;
    const uint32_t place = to + channel % Shape::kGroup * Bytes;
    const char* at = from + first * rowStride + channel * Bytes;
    const int64_t step = kRowsAtOnce * rowStride;
#pragma unroll
    for (int i = 0; i < kStageTokens / kRowsAtOnce; ++i) {
      const int row = first + i * kRowsAtOnce;
      const bool present = row < rows && channel < columns;
      ptx::cpAsync16(place + offset(row, channel / Shape::kGroup), at, present);
      at += step;
    }
  }

  /// As log2Decay().
  static SEQPAR_DEVICE float2 log2Pair(float2 gates) {
    return make_float2(ptx::maxNan(gates.x * kLog2e, kLeastLog2), ptx::maxNan(gates.y * kLog2e, kLeastLog2));
  }
};

/// The sum over the lanes with earlier (`Later`: later) tokens of the same channels.
template <class Shape, bool Later>
SEQPAR_DEVICE float2 sumOfOthers(float2 own, int lane) {
  constexpr unsigned kAll = 0xffffffffU;
  const auto shift = [&](float number, int distance) {
    return Later ? __shfl_down_sync(kAll, number, distance) : __shfl_up_sync(kAll, number, distance);
  };
  const auto there = [&](int distance) { return Later ? lane + distance < 32 : lane >= distance; };
  float2 sum = own;
#pragma unroll
  for (int distance = Shape::kPairs; distance < 32; distance *= 2) {
    const float2 other = make_float2(shift(sum.x, distance), shift(sum.y, distance));
    if (there(distance)) sum = make_float2(sum.x + other.x, sum.y + other.y);
  }
  const float2 result = make_float2(shift(sum.x, Shape::kPairs), shift(sum.y, Shape::kPairs));
  return there(Shape::kPairs) ? result : make_float2(0, 0);
}

}  // namespace seqpar::attn
