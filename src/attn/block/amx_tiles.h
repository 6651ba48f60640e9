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

constexpr std::size_t kBlockKeys = 16;                  ///< keys of a row of tiles of scores
constexpr std::size_t kSteps = kTileKeys / 32;          ///< of products with the keys of a tile
constexpr std::size_t kRowBytes = kTileQueries * 4;     ///< of b and c
constexpr std::size_t kTile = 512;                      ///< elements of a tile of a; its rows are contiguous
constexpr std::size_t kRowsOfTile = 16 * kTileQueries;  ///< elements of 16 rows of b or c

/// A row of tiles of c.
template <std::size_t Columns>
struct TileRow {
  static void begin(bool accumulate, const float* c) {
    if (!accumulate) {
      _tile_zero(0);
      if constexpr (Columns > 1) _tile_zero(1);
      if constexpr (Columns > 2) _tile_zero(2);
      if constexpr (Columns > 3) _tile_zero(3);
      return;
    }
    _tile_loadd(0, c, kRowBytes);
    if constexpr (Columns > 1) _tile_loadd(1, c + 16, kRowBytes);
    if constexpr (Columns > 2) _tile_loadd(2, c + 32, kRowBytes);
    if constexpr (Columns > 3) _tile_loadd(3, c + 48, kRowBytes);
  }
  /// Adds 32 products to each element.
  static void step(const uint16_t* a, const uint32_t* b) {
    _tile_loadd(4, a, 64);
    _tile_loadd(5, b, kRowBytes);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (Columns > 1) {
      _tile_loadd(6, b + 16, kRowBytes);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (Columns > 2) {
      _tile_loadd(7, b + 32, kRowBytes);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (Columns > 3) {
      _tile_loadd(5, b + 48, kRowBytes);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  static void end(float* c) {
    _tile_stored(0, c, kRowBytes);
    if constexpr (Columns > 1) _tile_stored(1, c + 16, kRowBytes);
    if constexpr (Columns > 2) _tile_stored(2, c + 32, kRowBytes);
    if constexpr (Columns > 3) _tile_stored(3, c + 48, kRowBytes);
  }
};

}  // namespace
}  // namespace seqpar::attn
