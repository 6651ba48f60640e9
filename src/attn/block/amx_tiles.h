// Products of bf16 tiles with the tile registers of AMX. Registers 0 to 3 are sums, 4 to 7 operands.
//
// Each source that includes this file gets its own copy; see base/simd.h.
#pragma once

#include <immintrin.h>

#include "attn/block/bf16_kernels.h"

namespace seqpar::attn {
namespace {

/// The operand of LDTILECFG: all tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, startRow = 0, reserved[14] = {};
  uint16_t rowBytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr std::size_t kRowBytes = kTileQueries * 4;  ///< of b and c

}  // namespace
}  // namespace seqpar::attn
