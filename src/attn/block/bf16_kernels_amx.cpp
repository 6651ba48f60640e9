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

constexpr std::size_t kPitch = kTileQueries * 4;  ///< bytes of a row of b and c

/// A block of c of Rows x Columns tiles: 0 to 3; the tiles of a are 4 and 5, those of b 6 and 7.
template <int Rows, int Columns>
void block(std::size_t k, const uint16_t* a, std::size_t strideA, const uint32_t* b, bool accumulate, float* c) {
  float* const below = c + 16 * kTileQueries;
  if (accumulate) {
    _tile_loadd(0, c, kPitch);
    if constexpr (Columns == 2) _tile_loadd(1, c + 16, kPitch);
    if constexpr (Rows == 2) _tile_loadd(2, below, kPitch);
    if constexpr (Rows == 2 && Columns == 2) _tile_loadd(3, below + 16, kPitch);
  } else {
    _tile_zero(0);
    if constexpr (Columns == 2) _tile_zero(1);
    if constexpr (Rows == 2) _tile_zero(2);
    if constexpr (Rows == 2 && Columns == 2) _tile_zero(3);
  }
  for (std::size_t p = 0; p < k; p += 32, b += 16 * kTileQueries) {
    _tile_loadd(6, b, kPitch);
    if constexpr (Columns == 2) _tile_loadd(7, b + 16, kPitch);
    _tile_loadd(4, a + p, strideA * 2);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Columns == 2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (Rows == 2) {
      _tile_loadd(5, a + 16 * strideA + p, strideA * 2);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (Columns == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, kPitch);
  if constexpr (Columns == 2) _tile_stored(1, c + 16, kPitch);
  if constexpr (Rows == 2) _tile_stored(2, below, kPitch);
  if constexpr (Rows == 2 && Columns == 2) _tile_stored(3, below + 16, kPitch);
}

template <int Columns>
void blocks(std::size_t m, std::size_t k, const uint16_t* a, std::size_t strideA, const uint32_t* b, bool accumulate,
            float* c) {
  std::size_t i = 0;
  for (; i + 32 <= m; i += 32) block<2, Columns>(k, a + i * strideA, strideA, b, accumulate, c + i * kTileQueries);
  if (i < m) block<1, Columns>(k, a + i * strideA, strideA, b, accumulate, c + i * kTileQueries);
}

}  // namespace

void multiplyBf16Amx(std::size_t m, std::size_t n, std::size_t k, const uint16_t* a, std::size_t strideA,
                     const uint32_t* b, bool accumulate, float* c) {
  const TileConfig config;
  _tile_loadconfig(&config);
  std::size_t j = 0;
  for (; j + 32 <= n; j += 32) blocks<2>(m, k, a, strideA, b + j, accumulate, c + j);
  if (j < n) blocks<1>(m, k, a, strideA, b + j, accumulate, c + j);
  _tile_release();
}

}  // namespace seqpar::attn
