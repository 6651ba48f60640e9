// Tiles of kernels/arch/tma.h (rows of 64 elements, 128 bytes, swizzled) as matrix operands of wgmma.
#pragma once

#include "kernels/arch/warpgroup.h"
#include "kernels/attn/linear/numbers.cuh"

namespace seqpar::ptx {

template <>
inline constexpr bool kIsBf16<attn::Bfloat16> = true;

}  // namespace seqpar::ptx

namespace seqpar::attn::forward_sm90 {

using warpgroup::Matrix;
using warpgroup::Terms;

/// Rows of the tile are the rows of A, or the columns of B: Terms::AlongRows.
SEQPAR_DEVICE Matrix rowsOf(uint32_t tile) {
  return warpgroup::matrixAt(tile, 16);
}
/// Rows of the tile are the product's terms: Terms::Rows. More than 64 columns are in several tiles, `tileBytes` apart.
SEQPAR_DEVICE Matrix columnsOf(uint32_t tile, int tileBytes) {
  return warpgroup::matrixAt(tile, tileBytes);
}
constexpr int kNextStepOfRows = 32;       ///< bytes to the next 16 columns of rowsOf(), within a tile of 64
constexpr int kNextStepOfColumns = 2048;  ///< bytes to the next 16 rows of columnsOf()

}  // namespace seqpar::attn::forward_sm90
