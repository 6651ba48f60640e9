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

}  // namespace seqpar::attn
