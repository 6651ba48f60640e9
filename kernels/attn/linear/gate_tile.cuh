// Log-decays of each channel in shared memory. Rows have room for fp32, channels lie in groups: those of a group, fp32
// or bf16, are in kGroup * 4 bytes, which later hold two tiles of 16-bit numbers.
#pragma once

#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/mma.cuh"
#include "kernels/attn/linear/shape.h"
#include "kernels/attn/linear/tile.cuh"

namespace seqpar::attn {

template <class Shape>
struct GateTile {
  static constexpr int kRowBytes = 4 * Shape::kDk;
  static constexpr int kBytes = kStageTokens * kRowBytes;

  static __device__ __forceinline__ void load(uint32_t to, const char* from, int64_t rowStride, int rows, int columns,
                                              bool full) {
    if (full) {
      load<4>(to, from, rowStride, rows, columns);
    } else {
      load<2>(to, from, rowStride, rows, columns);
    }
  }

  /// The log2-decays of two neighboring channels of `group` in the rows [row, row + 16), from channel 2 * pair on.
  static __device__ __forceinline__ void read(float2 (&decays)[kBlockTokens], const char* tile, int row, int group,
                                              int pair, bool full) {
    const char* const from = tile + row * kRowBytes + group * Shape::kGroup * 4;
    if (full) {
#pragma unroll
      for (int t = 0; t < kBlockTokens; ++t) {
        decays[t] = log2Pair(*reinterpret_cast<const float2*>(from + t * kRowBytes + pair * 8));
      }
    } else {
#pragma unroll
      for (int t = 0; t < kBlockTokens; ++t) {
        decays[t] =
            log2Pair(Numbers<Bfloat16>::unpack(*reinterpret_cast<const uint32_t*>(from + t * kRowBytes + pair * 4)));
      }
    }
  }

 private:
  template <int Bytes>
  static __device__ __forceinline__ void load(uint32_t to, const char* from, int64_t rowStride, int rows, int columns) {
    constexpr int kOfVector = 16 / Bytes;
    constexpr int kVectors = Shape::kDk / kOfVector;
#pragma unroll
    for (int i = 0; i < kStageTokens * kVectors / kThreads; ++i) {
      const int index = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = index / kVectors;
      const int channel = index % kVectors * kOfVector;
      const int group = channel / Shape::kGroup;
      const int place = row * kRowBytes + group * Shape::kGroup * 4 + channel % Shape::kGroup * Bytes;
      const bool present = row < rows && channel < columns;
      copy16(to + place, present ? from + row * rowStride + channel * Bytes : from, present);
    }
  }

  /// As log2Decay().
  static __device__ __forceinline__ float2 log2Pair(float2 gates) {
    return make_float2(maxOrNan(gates.x * kLog2e, kLeastLog2), maxOrNan(gates.y * kLog2e, kLeastLog2));
  }
};

}  // namespace seqpar::attn
