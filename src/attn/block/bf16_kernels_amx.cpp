#include "attn/block/amx_tiles.h"

namespace seqpar::attn {
namespace {

constexpr std::size_t kStepDepth = 32;

/// A block of c of Rows x Columns tiles: 0 to 3; the tiles of a are 4 and 5, those of b 6 and 7.
template <std::size_t Rows, std::size_t Columns>
void beginBlock(bool accumulate, const float* c) {
  const float* const below = c + 16 * kTileQueries;
  if (accumulate) {
    _tile_loadd(0, c, kRowBytes);
    if constexpr (Columns == 2) _tile_loadd(1, c + 16, kRowBytes);
    if constexpr (Rows == 2) _tile_loadd(2, below, kRowBytes);
    if constexpr (Rows == 2 && Columns == 2) _tile_loadd(3, below + 16, kRowBytes);
  } else {
    _tile_zero(0);
    if constexpr (Columns == 2) _tile_zero(1);
    if constexpr (Rows == 2) _tile_zero(2);
    if constexpr (Rows == 2 && Columns == 2) _tile_zero(3);
  }
}

/// Adds kStepDepth products to each element.
template <std::size_t Rows, std::size_t Columns>
void addToBlock(const uint16_t* a, std::size_t strideA, const uint32_t* b) {
  _tile_loadd(6, b, kRowBytes);
  if constexpr (Columns == 2) _tile_loadd(7, b + 16, kRowBytes);
  _tile_loadd(4, a, strideA * 2);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (Columns == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (Rows == 2) {
    _tile_loadd(5, a + 16 * strideA, strideA * 2);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (Columns == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

template <std::size_t Rows, std::size_t Columns>
void endBlock(float* c) {
  float* const below = c + 16 * kTileQueries;
  _tile_stored(0, c, kRowBytes);
  if constexpr (Columns == 2) _tile_stored(1, c + 16, kRowBytes);
  if constexpr (Rows == 2) _tile_stored(2, below, kRowBytes);
  if constexpr (Rows == 2 && Columns == 2) _tile_stored(3, below + 16, kRowBytes);
}

template <std::size_t Rows, std::size_t Columns>
void multiplyBlock(std::size_t k, const uint16_t* a, std::size_t strideA, const uint32_t* b, bool accumulate,
                   float* c) {
  beginBlock<Rows, Columns>(accumulate, c);
  for (std::size_t p = 0; p < k; p += kStepDepth) addToBlock<Rows, Columns>(a + p, strideA, b + p / 2 * kTileQueries);
  endBlock<Rows, Columns>(c);
}

}  // namespace

void multiplyBf16Amx(std::size_t m, std::size_t n, std::size_t k, const uint16_t* a, std::size_t strideA,
                     const uint32_t* b, bool accumulate, float* c) {
  if (m == 0) return;
  const TileConfig config;
  _tile_loadconfig(&config);
  for (std::size_t column = 0; column < n; column += 32, b += 32, c += 32) {
    const bool wide = column + 32 <= n;
    for (std::size_t row = 0; row < m; row += 32) {
      const bool tall = row + 32 <= m;
      const uint16_t* const rows = a + row * strideA;
      float* const to = c + row * kTileQueries;
      if (tall && wide) {
        multiplyBlock<2, 2>(k, rows, strideA, b, accumulate, to);
      } else if (tall) {
        multiplyBlock<2, 1>(k, rows, strideA, b, accumulate, to);
      } else if (wide) {
        multiplyBlock<1, 2>(k, rows, strideA, b, accumulate, to);
      } else {
        multiplyBlock<1, 1>(k, rows, strideA, b, accumulate, to);
      }
    }
  }
  _tile_release();
}

}  // namespace seqpar::attn
