#include <immintrin.h>

#include "attn/block/bf16_softmax.h"

namespace seqpar::attn {
namespace {

/// The operand of LDTILECFG: all tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, startRow = 0, reserved[14] = {};
  uint16_t rowBytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr std::size_t kPitch = kTileQueries * 4;  ///< bytes of a row of b and c
constexpr std::size_t kStepDepth = 32;

/// A block of c of Rows x Columns tiles: 0 to 3; the tiles of a are 4 and 5, those of b 6 and 7.
template <std::size_t Rows, std::size_t Columns>
void beginBlock(bool accumulate, const float* c) {
  const float* const below = c + 16 * kTileQueries;
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
}

/// Adds kStepDepth products to each element.
template <std::size_t Rows, std::size_t Columns>
void addToBlock(const uint16_t* a, std::size_t strideA, const uint32_t* b) {
  _tile_loadd(6, b, kPitch);
  if constexpr (Columns == 2) _tile_loadd(7, b + 16, kPitch);
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
  _tile_stored(0, c, kPitch);
  if constexpr (Columns == 2) _tile_stored(1, c + 16, kPitch);
  if constexpr (Rows == 2) _tile_stored(2, below, kPitch);
  if constexpr (Rows == 2 && Columns == 2) _tile_stored(3, below + 16, kPitch);
}

/// Products in steps of one block and kStepDepth: with 2 x 2 tiles, 64 cycles of the tile multiplier.
class Steps {
 public:
  Steps(const Bf16Product* products, std::size_t count) : product_(products), end_(products + count) {}
  bool done() const { return product_ == end_; }
  void operator()() {
    if (done()) return;
    const Bf16Product& of = *product_;
    const bool tall = row_ + 32 <= of.m, wide = column_ + 32 <= of.n;
    if (tall && wide) return step<2, 2>(of);
    if (tall) return step<2, 1>(of);
    if (wide) return step<1, 2>(of);
    step<1, 1>(of);
  }

 private:
  template <std::size_t Rows, std::size_t Columns>
  void step(const Bf16Product& of) {
    float* const c = of.c + row_ * kTileQueries + column_;
    if (depth_ == 0) beginBlock<Rows, Columns>(of.accumulate, c);
    addToBlock<Rows, Columns>(of.a + row_ * of.strideA + depth_, of.strideA,
                              of.b + depth_ / 2 * kTileQueries + column_);
    depth_ += kStepDepth;
    if (depth_ < of.k) return;
    endBlock<Rows, Columns>(c);
    depth_ = 0;
    row_ += 16 * Rows;
    if (row_ < of.m) return;
    row_ = 0;
    column_ += 16 * Columns;
    if (column_ < of.n) return;
    column_ = 0;
    ++product_;
  }

  const Bf16Product *product_, *end_;
  std::size_t row_ = 0, column_ = 0, depth_ = 0;
};

}  // namespace

void multiplyBf16Amx(std::size_t m, std::size_t n, std::size_t k, const uint16_t* a, std::size_t strideA,
                     const uint32_t* b, bool accumulate, float* c) {
  if (m == 0) return;
  const TileConfig config;
  _tile_loadconfig(&config);
  const Bf16Product product{m, n, k, a, strideA, b, accumulate, c};
  for (Steps steps(&product, 1); !steps.done();) steps();
  _tile_release();
}

bool softmaxBf16Amx(const SoftmaxTile& tile, const Bf16Product* products, std::size_t count) {
  const TileConfig config;
  _tile_loadconfig(&config);
  Steps steps(products, count);
  const bool changed = softmaxTile(tile, steps);
  while (!steps.done()) steps();
  _tile_release();
  return changed;
}

}  // namespace seqpar::attn
