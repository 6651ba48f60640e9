// Operands of the host block kernel's products.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/block/host_rows.h"
#include "attn/block/host_tiles.h"
#include "base/convert.h"
#include "base/sgemm.h"

namespace seqpar::attn {

constexpr int64_t kColumns = 256;                         ///< keys of a tile
constexpr int64_t kGradientTiles = kKeyChunk / kColumns;  ///< of keys that a backward pass packs together
constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Rows of fp32 elements.
struct Matrix {
  const float* data;
  size_t stride;
  const float* row(int64_t i) const { return data + size(i) * stride; }
};

enum class Copy { IfNeeded, Always };

/// `count` tokens of one head in fp32: in place if they are fp32, `factor` is 1 and no copy is requested, otherwise a
/// dense copy in `buffer`.
inline Matrix load(const Tensor& tensor, int64_t b, int64_t first, int64_t count, int64_t head, float factor,
                   float* buffer, Copy copy = Copy::IfNeeded) {
  if (tensor.type == seqparFloat32 && factor == 1 && copy == Copy::IfNeeded) {
    // With one token the stride is unused and may have any value.
    const int64_t stride = std::max(tensor.tokenStride, tensor.dim);
    return {reinterpret_cast<const float*>(tensor.at(b, first, head)), size(stride)};
  }
  const size_t dim = size(tensor.dim);
  for (int64_t t = 0; t < count; ++t) {
    float* const row = buffer + size(t) * dim;
    if (tensor.type == seqparFloat32) {
      rows::scaledCopy(reinterpret_cast<const float*>(tensor.at(b, first + t, head)), dim, factor, row);
    } else {
      toFloat(tensor.at(b, first + t, head), tensor.type, row, dim);
      if (factor != 1) rows::scale(row, dim, factor);
    }
  }
  return {buffer, dim};
}

/// Zeros the elements of a tile row outside `seen`; both are relative to the same column.
inline void clearOutside(float* row, TileRange tile, TileRange seen) {
  if (seen.empty()) return void(std::fill_n(row, tile.end - tile.begin, 0.0f));
  std::fill(row, row + (seen.begin - tile.begin), 0.0f);
  std::fill(row + (seen.end - tile.begin), row + (tile.end - tile.begin), 0.0f);
}

/// The columns of a tile's packed operands that products compute: also hidden ones next to the visible ones, so that
/// their register tiles are whole.
struct PackedColumns {
  size_t begin, end;
};
inline PackedColumns packedColumns(size_t begin, size_t end, int64_t columns) {
  const size_t whole = (end + kPackedColumns - 1) / kPackedColumns * kPackedColumns;
  return {begin / kPackedColumns * kPackedColumns, std::min(whole, size(columns))};
}

}  // namespace seqpar::attn
