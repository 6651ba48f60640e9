// The kernels of bf16_*_amx.cpp with emulated tile registers, for processors with
// AVX512-BF16 but without AMX.
//
// As the kernels' own source, this file must not use inline functions of shared headers; see base/simd.h.
#include "amx_emulated.h"

#include <immintrin.h>

namespace {

constexpr int kRows = 16, kPairs = 16;

thread_local uint32_t tiles[8][kRows][kPairs];

void loadTile(int tile, const void* from, std::size_t stride) {
  for (int i = 0; i < kRows; ++i) {
    __builtin_memcpy(tiles[tile][i], static_cast<const char*>(from) + static_cast<std::size_t>(i) * stride, 64);
  }
}

void storeTile(int tile, void* to, std::size_t stride) {
  for (int i = 0; i < kRows; ++i) {
    __builtin_memcpy(static_cast<char*>(to) + static_cast<std::size_t>(i) * stride, tiles[tile][i], 64);
  }
}

void zeroTile(int tile) {
  __builtin_memset(tiles[tile], 0, sizeof tiles[tile]);
}

void multiplyTiles(int c, int a, int b) {
  for (int i = 0; i < kRows; ++i) {
    __m512 sums = _mm512_loadu_ps(tiles[c][i]);
    for (int k = 0; k < kPairs; ++k) {
      const __m512i left = _mm512_set1_epi32(static_cast<int>(tiles[a][i][k])), right = _mm512_loadu_si512(tiles[b][k]);
      sums = _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
    }
    _mm512_storeu_ps(tiles[c][i], sums);
  }
}

}  // namespace

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadd(tile, from, stride) loadTile(tile, from, stride)
#define _tile_stored(tile, to, stride) storeTile(tile, to, stride)
#define _tile_zero(tile) zeroTile(tile)
#define _tile_dpbf16ps(c, a, b) multiplyTiles(c, a, b)
#define _tile_loadconfig(config) static_cast<void>(config)
#define _tile_release() static_cast<void>(0)
#define multiplyBf16Amx multiplyBf16AmxEmulated
#define forwardBf16Amx forwardBf16AmxEmulated
#define backwardBf16Amx backwardBf16AmxEmulated
#include "attn/block/bf16_backward_amx.cpp"
#include "attn/block/bf16_forward_amx.cpp"
#include "attn/block/bf16_kernels_amx.cpp"
