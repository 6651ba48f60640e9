// The backward of a tile of queries with AMX: FlashAttention-2's inner loop (arXiv 2307.08691, Algorithm 2) over blocks
// of 16 keys. Between the exponentials of a block, the tile multiplier computes the scores of the next block, the
// gradients of the preceding block's keys and values, and those of queries from the preceding tile of keys.
#include "attn/block/amx_tiles.h"
#include "attn/block/bf16_softmax.h"

namespace seqpar::attn {
namespace {

constexpr std::size_t kMostProducts = 64;  ///< next to a block of keys
constexpr std::size_t kKeysOfStep = 4;     ///< of 32 queries, next to a step of the products

/// A row of `Columns` tiles of c: c = or += a b. The tiles of a are `strideA` elements apart unless table is not null.
struct TileProduct {
  const uint16_t* a;
  std::size_t strideA;
  const uint16_t* const* table;  ///< tiles of a; plus `a` as an offset
  std::size_t offset;
  const uint32_t* b;
  std::size_t steps, columns;
  bool accumulate;
  float* c;
};

/// ProductQueue in steps of one tile of a.
class ProductQueue {
 public:
  void clear() { next_ = end_ = 0; }
  void add(const TileProduct& product) {
    if (end_ == kMostProducts) {
      finish();
      clear();
    }
    list_[end_++] = product;
  }
  std::size_t steps() const {
    std::size_t all = 0;
    for (std::size_t i = next_; i < end_; ++i) all += list_[i].steps;
    return all;
  }
  void operator()() {
    if (next_ == end_) return;
    const TileProduct& p = list_[next_];
    if (p.columns == 4) {
      run<4>(p);
    } else {
      run<2>(p);
    }
  }
  void finish() {
    while (next_ < end_) (*this)();
  }

 private:
  template <std::size_t Columns>
  void run(const TileProduct& p) {
    if (step_ == 0) TileRow<Columns>::begin(p.accumulate, p.c);
    const uint16_t* const a = p.table != nullptr ? p.table[step_] + p.offset : p.a + step_ * p.strideA;
    TileRow<Columns>::step(a, p.b + step_ * kRowsOfTile);
    if (++step_ < p.steps) return;
    TileRow<Columns>::end(p.c);
    step_ = 0;
    ++next_;
  }

  TileProduct list_[kMostProducts] = {};
  std::size_t next_ = 0, end_ = 0, step_ = 0;
};

/// Weights and gradients of scores of a block: [queries / 32] tiles of 16 keys and 32 queries.
struct alignas(64) BlockWeights {
  uint16_t weights[kBlockKeys * kTileQueries], gradients[kBlockKeys * kTileQueries];
};

inline __m512i rounded(__m512 a, __m512 b) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
}

/// 16 queries of a block of keys.
template <bool All>
struct GradientQueries {
  __m512i first, end;
  __m512 lse, delta, factor;
  const float *scores, *products;
  std::size_t key;

  GradientQueries(const Bf16Backward& f, const float* scoresOf, const float* productsOf, std::size_t query,
                  std::size_t keyOf)
      : first(_mm512_loadu_si512(f.firstKey + query)),
        end(_mm512_loadu_si512(f.endKey + query)),
        lse(_mm512_loadu_ps(f.lse + query)),
        delta(_mm512_loadu_ps(f.delta + query)),
        factor(_mm512_set1_ps(f.factor)),
        scores(scoresOf + query),
        products(productsOf + query),
        key(keyOf) {}

  struct Values {
    __m512 weight, gradient;
  };
  Values at(std::size_t i) const {
    const __m512 weight = powerOfTwo(_mm512_fmsub_ps(_mm512_loadu_ps(scores + i * kTileQueries), factor, lse));
    const __m512 product = _mm512_sub_ps(_mm512_loadu_ps(products + i * kTileQueries), delta);
    if constexpr (All) return {weight, _mm512_mul_ps(weight, product)};
    const __m512i at = _mm512_set1_epi32(static_cast<int>(key + i));
    const __mmask16 seen = _mm512_cmpge_epi32_mask(at, first) & _mm512_cmplt_epi32_mask(at, end);
    return {_mm512_maskz_mov_ps(seen, weight), _mm512_maskz_mul_ps(seen, weight, product)};
  }
};

template <bool All>
void gradientsOfBlock(const Bf16Backward& f, const float* scores, const float* products, std::size_t key,
                      BlockWeights& to, uint32_t* gradientPairs, std::size_t perStep, ProductQueue& next) {
  for (std::size_t query = 0; query < f.queries; query += 32) {
    const GradientQueries<All> low(f, scores, products, query, key), high(f, scores, products, query + 16, key);
    uint16_t *weights = to.weights + query * kBlockKeys, *gradients = to.gradients + query * kBlockKeys;
    uint32_t* pairsTo = gradientPairs + query;
    for (std::size_t i = 0; i < kBlockKeys; i += 2, weights += 64, gradients += 64, pairsTo += kTileQueries) {
      if (i % kKeysOfStep == 0) {
        for (std::size_t j = 0; j < perStep; ++j) next();
      }
      const auto a = low.at(i), b = high.at(i), c = low.at(i + 1), d = high.at(i + 1);
      _mm512_storeu_si512(weights, rounded(a.weight, b.weight));
      _mm512_storeu_si512(weights + 32, rounded(c.weight, d.weight));
      _mm512_storeu_si512(gradients, rounded(a.gradient, b.gradient));
      _mm512_storeu_si512(gradients + 32, rounded(c.gradient, d.gradient));
      _mm512_storeu_si512(pairsTo, pairs(a.gradient, c.gradient));
      _mm512_storeu_si512(pairsTo + 16, pairs(b.gradient, d.gradient));
    }
  }
}

/// The passes over a tile of queries.
class Backward {
 public:
  explicit Backward(const Bf16Backward& f) : f_(f) {}

  void run() {
    const std::size_t blocks = f_.keys / kBlockKeys;
    addScores(0);
    products_.finish();
    for (std::size_t block = 0; block < blocks; ++block) {
      products_.clear();
      if (block + 1 < blocks) addScores(block + 1);
      if (block > 0) addKeys(block - 1);
      if (f_.dq != nullptr) addQueries(block);
      const std::size_t slots = f_.queries / 32 * (kBlockKeys / kKeysOfStep);
      const std::size_t perStep = (products_.steps() + slots - 1) / slots, key = block * kBlockKeys;
      uint32_t* const pairsTo = f_.gradientPairs + block % kPairBlocks * (kRowsOfTile / 2);
      const float* const scores = scoresOf(block);
      if (seesAll(key)) {
        gradientsOfBlock<true>(f_, scores, scores + kRowsOfTile, key, weights_[block % 2], pairsTo, perStep, products_);
      } else {
        gradientsOfBlock<false>(f_, scores, scores + kRowsOfTile, key, weights_[block % 2], pairsTo, perStep,
                                products_);
      }
      products_.finish();
      if (block > 0) addVisible(block - 1);
    }
    products_.clear();
    addKeys(blocks - 1);
    products_.finish();
    addVisible(blocks - 1);
    if (f_.dq == nullptr) return;
    products_.clear();
    const std::size_t priorBlocks = (blocks - 1) % (kPairBlocks / 2) + 1;
    addRows(blocks - priorBlocks, priorBlocks, 0, f_.depth / 16);
    products_.finish();
  }

 private:
  static constexpr std::size_t kPairBlocks = 2 * kTileKeys / kBlockKeys;  ///< blocks of two tiles of keys
  static constexpr std::size_t kTileBlocks = kTileKeys / kBlockKeys;

  float* scoresOf(std::size_t block) const { return f_.scores + block % 2 * (2 * kRowsOfTile); }

  bool seesAll(std::size_t key) const {
    return static_cast<int32_t>(key) >= f_.seenByAllFirst && static_cast<int32_t>(key + kBlockKeys) <= f_.seenByAllEnd;
  }

  void addScores(std::size_t block) {
    const std::size_t columns = f_.queries / 16;
    float* const to = scoresOf(block);
    products_.add({f_.k + block * kBlockKeys * f_.depth, kTile, nullptr, 0, f_.q, f_.depth / 32, columns, false, to});
    products_.add({f_.v + block * kBlockKeys * f_.width, kTile, nullptr, 0, f_.dOut, f_.width / 32, columns, false,
                   to + kRowsOfTile});
  }

  bool hidden(std::size_t block) const {
    return block * kBlockKeys + kBlockKeys <= f_.visibleBegin || block * kBlockKeys >= f_.visibleEnd;
  }
  bool partlyHidden(std::size_t block) const {
    return block * kBlockKeys < f_.visibleBegin || block * kBlockKeys + kBlockKeys > f_.visibleEnd;
  }

  // Sums of hidden keys do not change, not even by 0 times NaN: products of a block with some are written elsewhere.
  void addKeys(std::size_t block) {
    if (f_.dk == nullptr || hidden(block)) return;
    const bool apart = partlyHidden(block);
    const BlockWeights& of = weights_[block % 2];
    const auto add = [&](const uint16_t* a, const uint32_t* b, std::size_t width, float* sums, float* elsewhere) {
      for (std::size_t column = 0; column < width; column += kTileQueries) {
        const std::size_t rest = width - column;
        float* const to =
            apart ? elsewhere + column * kBlockKeys : sums + column * f_.sumRows + block * kBlockKeys * kTileQueries;
        products_.add({a, kTile, nullptr, 0, b + column * kTileQueries / 2, f_.queries / 32,
                       rest < kTileQueries ? rest / 16 : 4, !apart, to});
      }
    };
    add(of.weights, f_.dOutPairs, f_.width, f_.dv, f_.apart);
    add(of.gradients, f_.qPairs, f_.depth, f_.dk, f_.apart + f_.apartColumns * kBlockKeys);
  }

  void addVisible(std::size_t block) const {
    if (f_.dk == nullptr || hidden(block) || !partlyHidden(block)) return;
    const auto add = [&](std::size_t width, float* sums, const float* elsewhere) {
      for (std::size_t i = 0; i < kBlockKeys; ++i) {
        const std::size_t key = block * kBlockKeys + i;
        if (key < f_.visibleBegin || key >= f_.visibleEnd) continue;
        for (std::size_t column = 0; column < width; column += 16) {
          const std::size_t strip = column / kTileQueries * kTileQueries, within = column - strip;
          float* const to = sums + strip * f_.sumRows + key * kTileQueries + within;
          const float* const from = elsewhere + strip * kBlockKeys + i * kTileQueries + within;
          _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_loadu_ps(from)));
        }
      }
    };
    add(f_.width, f_.dv, f_.apart);
    add(f_.depth, f_.dk, f_.apart + f_.apartColumns * kBlockKeys);
  }

  // Rows of dq^T from the preceding tile of keys, a share of them next to each block of a tile.
  void addQueries(std::size_t block) {
    const std::size_t tile = block / kTileBlocks * kTileBlocks, rows = f_.depth / 16;
    if (tile == 0) return;
    const std::size_t left = f_.keys / kBlockKeys - tile, blocks = left < kTileBlocks ? left : kTileBlocks;
    addRows(tile - kTileBlocks, kTileBlocks, rows * (block - tile) / blocks, rows * (block - tile + 1) / blocks);
  }

  void addRows(std::size_t firstBlock, std::size_t blocks, std::size_t firstRow, std::size_t endRow) {
    const std::size_t first = firstBlock / 2, steps = blocks / 2, last = f_.keys / 32 - 1;
    for (std::size_t i = 0; i < steps; ++i) {
      const std::size_t step = first + i;
      keys_[i] = f_.kTransposed + step * (f_.depth * 32);
      if (step == last && f_.lastKeys != nullptr) keys_[i] = f_.lastKeys;
      if (step == 0 && f_.firstKeys != nullptr) keys_[i] = f_.firstKeys;
    }
    const uint32_t* const gradients = f_.gradientPairs + firstBlock % kPairBlocks * (kRowsOfTile / 2);
    for (std::size_t row = firstRow; row < endRow; ++row) {
      products_.add({nullptr, 0, keys_, row * kTile, gradients, steps, f_.queries / 16, firstBlock > 0,
                     f_.dq + row * kRowsOfTile});
    }
  }

  BlockWeights weights_[2] = {};
  ProductQueue products_;
  const uint16_t* keys_[kSteps] = {};
  const Bf16Backward& f_;
};

}  // namespace

void backwardBf16Amx(const Bf16Backward& f) {
  const TileConfig config;
  _tile_loadconfig(&config);
  Backward(f).run();
  _tile_release();
}

}  // namespace seqpar::attn
