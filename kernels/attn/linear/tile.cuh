// Tiles of rows in shared memory: asynchronous copies from device memory, and addresses for ptx::ldmatrixX4().
#pragma once

#include <cstdint>

#include "kernels/arch/async_copy.h"
#include "kernels/arch/mma.h"
#include "kernels/attn/linear/shape.h"

namespace seqpar::attn {

/// kStageTokens rows of `Width` 16-bit elements. The padding between rows, and between groups of 8 rows, lets
/// ptx::ldmatrixX4() read 8 rows, and a warp 2 elements per lane of rows 8 apart, without bank conflicts.
template <int Width>
struct Tile {
  static constexpr int kPitch = 2 * Width + 16;
  static constexpr int kBytes = kStageTokens * kPitch + (kStageTokens / 8 - 1) * 32;
  static constexpr int kVectors = Width / 8;

  /// The byte offset of an element.
  static SEQPAR_DEVICE constexpr int offset(int row, int column) { return row * kPitch + (row >> 3) * 32 + column * 2; }

  /// Called by all threads of a CTA: loads the first `rows` rows with `columns` elements each; zero-fills the rest.
  template <int Threads>
  static SEQPAR_DEVICE void load(uint32_t to, const char* from, int64_t rowStride, int rows, int columns) {
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
      ptx::cpAsync16(to + offset(row, vector * 8), at, present);
      at += step;
    }
  }

  /// This lane's address for ptx::ldmatrixX4() of rows [row, row + 16), a multiple of 16, and columns from 0 on; add 32
  /// bytes for the next 16 columns. The matrices are (upper left, lower left, upper right, lower right): A of the tile.
  static SEQPAR_DEVICE uint32_t fragment(uint32_t tile, int row, int lane) {
    return tile + offset(row + (lane & 15), 8 * (lane >> 4));
  }
  /// With the order (upper left, upper right, lower left, lower right): for B of the transpose, and with
  /// ptx::ldmatrixX4Trans() A of the transpose.
  static SEQPAR_DEVICE uint32_t fragmentAcross(uint32_t tile, int row, int lane) {
    return tile + offset(row + (lane & 7) + ((lane >> 4) << 3), 8 * ((lane >> 3) & 1));
  }
  /// 8 rows, a multiple of 8, and 32 columns: B of the transpose for two steps. Add 64 bytes for the next columns.
  static SEQPAR_DEVICE uint32_t fragmentWide(uint32_t tile, int row, int lane) {
    return tile + offset(row + (lane & 7), 8 * (lane >> 3));
  }
};

}  // namespace seqpar::attn
