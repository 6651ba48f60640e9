// Common parts of the passes of the host block kernel on bf16 inputs.
#pragma once

#include <algorithm>
#include <cstring>

#include "attn/block/bf16_kernels.h"
#include "attn/block/host_tiles.h"

namespace seqpar::attn {

constexpr int64_t kQueries = kTileQueries, kKeys = kTileKeys;
constexpr int64_t kDepth = 32;  ///< of a step of Bf16Kernels::multiply()
/// Keys of a chunk of the forward, before it merges results: k and v^T, 1 MiB for heads of 128.
constexpr int64_t kForwardKeys16 = 2048;
constexpr int64_t kPitch = kForwardKeys16 + kDepth;  ///< elements of a row of v^T; no multiple of a page
/// Keys with sums of gradients in scratch memory: dk and dv, 0.5 MiB for heads of 128, fit the second cache.
constexpr int64_t kGradientKeys = 512;

inline int64_t up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Copies `count` tokens of one head into rows of `pitch` elements, and zero-fills these and the rows up to `rows`.
inline void copyRows(const Tensor& tensor, int64_t b, int64_t first, int64_t count, int64_t head, int64_t rows,
                     int64_t pitch, uint16_t* to) {
  for (int64_t t = 0; t < count; ++t, to += pitch) {
    std::memcpy(to, tensor.at(b, first + t, head), size(tensor.dim) * sizeof *to);
    std::fill(to + tensor.dim, to + pitch, uint16_t{0});
  }
  std::fill_n(to, (rows - count) * pitch, uint16_t{0});
}

/// Copies columns [first, first + count) of a matrix with rows of kPitch elements, and zero-fills them to kDepth.
inline void copyLastColumns(const uint16_t* matrix, int64_t rows, int64_t first, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < rows; ++i, to += kDepth) {
    std::copy_n(matrix + i * kPitch + first, count, to);
    std::fill(to + count, to + kDepth, uint16_t{0});
  }
}

/// 32 rows of `depth` elements as [2][depth / 32] tiles of 16 rows of 32 elements.
inline void tileRows(const uint16_t* rows, int64_t depth, uint16_t* to) {
  for (int64_t row = 0; row < kDepth; row += 16, to += depth * 16) {
    for (int64_t i = 0; i < 16; ++i) {
      const uint16_t* const from = rows + (row + i) * depth;
      for (int64_t d = 0; d < depth; d += kDepth) std::copy_n(from + d, kDepth, to + d * 16 + i * kDepth);
    }
  }
}

/// The transpose of 32 rows of `width` elements as [width / 16] tiles.
inline void tileTransposed(const Bf16Kernels& kernels, const uint16_t* rows, int64_t width, uint16_t* to) {
  for (int64_t d = 0; d < width; d += 16) {
    kernels.transpose16(size(kDepth), 16, rows + d, size(width), to + d * kDepth, size(kDepth));
  }
}

/// Tiles of tileTransposed() without the rows outside `visible`, copied to `to`; null if all 32 rows are visible.
inline const uint16_t* visibleTiles(const uint16_t* tiles, int64_t width, TileRange visible, uint16_t* to) {
  const int64_t begin = std::max(visible.begin, int64_t{0}), end = std::min(visible.end, kDepth);
  if (begin == 0 && end == kDepth) return nullptr;
  for (uint16_t* at = to; at < to + width * kDepth; at += kDepth, tiles += kDepth) {
    std::fill_n(at, kDepth, uint16_t{0});
    std::copy_n(tiles + begin, end - begin, at + begin);
  }
  return to;
}

}  // namespace seqpar::attn
