// Tiles of rows in shared memory: asynchronous copies from device memory, and addresses for loadMatrices().
#pragma once

#include <cstdint>

#include "kernels/attn/linear/mma.cuh"
#include "kernels/attn/linear/shape.h"

namespace seqpar::attn {

using warp::sharedAddress;

#ifdef __CUDACC__

/// Copies 16 bytes to shared memory; writes zeros and reads nothing if not `present`.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy4(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(present ? 4 : 0) : "memory");
}

#else

inline void copy16(uint32_t to, const void* from, bool present) {
  warp::copyAsync(warp::sharedAt(to), from, present);
}
inline void copy4(uint32_t to, const void* from, bool present) {
  warp::copyAsync(warp::sharedAt(to), from, present, 4);
}

#endif

using warp::awaitCopies;
using warp::commitCopies;

/// kStageTokens rows of `Width` 16-bit elements. The padding between rows, and between groups of 8 rows, lets
/// loadMatrices() read 8 rows, and a warp 2 elements per lane of rows 8 apart, without bank conflicts.
template <int Width>
struct Tile {
  static constexpr int kPitch = 2 * Width + 16;
  static constexpr int kBytes = kStageTokens * kPitch + (kStageTokens / 8 - 1) * 32;
  static constexpr int kVectors = Width / 8;

  /// The byte offset of an element.
  static __device__ __forceinline__ constexpr int offset(int row, int column) {
    return row * kPitch + (row >> 3) * 32 + column * 2;
  }

  /// Called by all threads of a CTA: loads the first `rows` rows with `columns` elements each; zero-fills the rest.
  template <int Threads>
  static __device__ __forceinline__ void load(uint32_t to, const char* from, int64_t rowStride, int rows, int columns) {
    constexpr int kRowsAtOnce = Threads / kVectors;
    static_assert(Threads % kVectors == 0 && kStageTokens % kRowsAtOnce == 0);
    const int vector = static_cast<int>(threadIdx.x) % kVectors;
    const int first = static_cast<int>(threadIdx.x) / kVectors;
    const char* at = from + first * rowStride + vector * 16;
    const int64_t step = kRowsAtOnce * rowStride;
#pragma unroll
    for (int i = 0; i < kStageTokens / kRowsAtOnce; ++i) {
      const int row = first + i * kRowsAtOnce;
      const bool present = row < rows && vector * 8 < columns;
      copy16(to + offset(row, vector * 8), at, present);
      at += step;
    }
  }

  /// This lane's address for loadMatrices() of rows [row, row + 16), a multiple of 16, and columns from 0 on; add 32
  /// bytes for the next 16 columns. The matrices are (upper left, lower left, upper right, lower right): A of the tile.
  static __device__ __forceinline__ uint32_t fragment(uint32_t tile, int row, int lane) {
    return tile + offset(row + (lane & 15), 8 * (lane >> 4));
  }
  /// With the order (upper left, upper right, lower left, lower right): for B of the transpose, and with
  /// loadTransposed() A of the transpose.
  static __device__ __forceinline__ uint32_t fragmentAcross(uint32_t tile, int row, int lane) {
    return tile + offset(row + (lane & 7) + ((lane >> 4) << 3), 8 * ((lane >> 3) & 1));
  }
  /// 8 rows, a multiple of 8, and 32 columns: B of the transpose for two steps. Add 64 bytes for the next columns.
  static __device__ __forceinline__ uint32_t fragmentWide(uint32_t tile, int row, int lane) {
    return tile + offset(row + (lane & 7), 8 * (lane >> 3));
  }
};

}  // namespace seqpar::attn
