// Tiles of tma.cuh (rows of 64 elements, 128 bytes, swizzled) as matrix operands of wgmma.
#pragma once

#include "kernels/attn/linear/mma.cuh"
#include "kernels/attn/linear/warpgroup_ops.h"

namespace seqpar::attn::warp {

template <>
inline constexpr bool kIsBf16<Bfloat16> = true;

}  // namespace seqpar::attn::warp

namespace seqpar::attn::hopper {

using warpgroup::Matrix;
using warpgroup::Terms;

/// Rows of the tile are the rows of A, or the columns of B: Terms::AlongRows.
__device__ __forceinline__ Matrix rowsOf(uint32_t tile) {
  return warpgroup::matrixAt(tile, 16);
}
/// Rows of the tile are the product's terms: Terms::Rows. More than 64 columns are in several tiles, `tileBytes` apart.
__device__ __forceinline__ Matrix columnsOf(uint32_t tile, int tileBytes) {
  return warpgroup::matrixAt(tile, tileBytes);
}
constexpr int kNextStepOfRows = 32;       ///< bytes to the next 16 columns of rowsOf(), within a tile of 64
constexpr int kNextStepOfColumns = 2048;  ///< bytes to the next 16 rows of columnsOf()

}  // namespace seqpar::attn::hopper
