// The forward of a tile of queries with AMX: FlashAttention-2's inner loop (arXiv 2307.08691, Algorithm 1) over blocks
// of 16 keys. Between the exponentials of a block, the tile multiplier computes the scores of the next block and
// products of earlier weights and values; both run at the same time. Scores of two blocks stay in the first cache, and
// tiles of k and v^T are read once, in the order of their addresses.
#include "attn/block/amx_tiles.h"
#include "attn/block/bf16_softmax.h"

namespace seqpar::attn {
namespace {

/// Scores of a block of keys, then rows of products of weights and values, in steps of one tile of a.
template <std::size_t Columns>
class Products {
 public:
  explicit Products(const Bf16Forward& f) : f_(f), scoreSteps_(f.depth / 32), scoreStep_(scoreSteps_), k_(f.k) {}

  /// The scores of the next block of keys, which are written to c.
  void scores(float* c) {
    scoreStep_ = 0;
    scores_ = c;
  }
  /// Products of `weights` and v, for `steps` of 32 keys from step `first` on.
  void values(std::size_t first, std::size_t steps, const uint32_t* weights) {
    const std::size_t last = f_.keys / 32 - 1;
    for (std::size_t i = 0; i < steps; ++i) {
      const std::size_t step = first + i;
      v_[i] = f_.v + step * (f_.width * 32);
      if (step == last && f_.lastValues != nullptr) v_[i] = f_.lastValues;
      if (step == 0 && f_.firstValues != nullptr) v_[i] = f_.firstValues;
    }
    valueSteps_ = steps;
    weights_ = weights;
    accumulate_ = first > 0;
    row_ = 0;
  }
  /// Rows of out that may be computed now: up to `end`, in units of 16.
  void rows(std::size_t end) { endRow_ = end; }
  std::size_t steps() const { return scoreSteps_ - scoreStep_ + (endRow_ - row_) * valueSteps_; }
  void operator()() {
    if (scoreStep_ < scoreSteps_) return score();
    if (row_ < endRow_) value();
  }
  void finish() {
    while (scoreStep_ < scoreSteps_) score();
    while (row_ < endRow_) value();
  }

 private:
  using Row = TileRow<Columns>;
  void score() {
    if (scoreStep_ == 0) Row::begin(false, nullptr);
    Row::step(k_, f_.q + scoreStep_ * kRowsOfTile);
    k_ += kTile;
    if (++scoreStep_ == scoreSteps_) Row::end(scores_);
  }
  void value() {
    float* const c = f_.out + row_ * kRowsOfTile;
    if (valueStep_ == 0) Row::begin(accumulate_, c);
    const uint16_t* const a = v_[valueStep_] + row_ * kTile;
    Row::step(a, weights_ + valueStep_ * kRowsOfTile);
    if (++valueStep_ < valueSteps_) return;
    Row::end(c);
    valueStep_ = 0;
    ++row_;
  }

  const Bf16Forward& f_;
  std::size_t scoreSteps_, scoreStep_;
  const uint16_t* k_;
  float* scores_ = nullptr;
  const uint16_t* v_[kSteps] = {};
  std::size_t valueSteps_ = 0, valueStep_ = 0, row_ = 0, endRow_ = 0;
  const uint32_t* weights_ = nullptr;
  bool accumulate_ = false;
};

/// Weights of 16 queries, of 2i and 2i + 1 in `pairs` [..][kTileQueries], times factor.
inline void scaleWeights(uint32_t* pairsOf, std::size_t rows, __m512 factor) {
  for (; rows > 0; --rows, pairsOf += kTileQueries) {
    const __m512i both = _mm512_loadu_si512(pairsOf);
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    _mm512_storeu_si512(pairsOf, pairs(_mm512_mul_ps(even, factor), _mm512_mul_ps(odd, factor)));
  }
}

/// 16 queries: what they see, and their sums.
struct Queries {
  __m512i first, end;
  __m512 most, even, odd;
  __m512 kept;  ///< the factor of earlier tiles' results
};

/// Weights of the block of keys that starts at `key`; `before` of this tile's pairs are complete. Calls
/// step() between the exponentials.
template <bool All, class Step>
inline void softmaxOfBlock(const float* scores, std::size_t key, __m512 factor, Queries& q, uint32_t* tileWeights,
                           std::size_t before, bool& changed, Step&& step) {
  const auto score = [&](std::size_t i) { return _mm512_loadu_ps(scores + i * kTileQueries); };
  const auto seen = [&](std::size_t i) {
    const __m512i at = _mm512_set1_epi32(static_cast<int>(key + i));
    return _mm512_cmpge_epi32_mask(at, q.first) & _mm512_cmplt_epi32_mask(at, q.end);
  };
  __m512 of[4];  // independent maxima; NaN scores do not count
  for (auto& one : of) one = _mm512_set1_ps(kLowest);
  for (std::size_t i = 0; i < kBlockKeys; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) {
      if constexpr (All) {
        of[j] = _mm512_max_ps(score(i + j), of[j]);
      } else {
        of[j] = _mm512_max_ps(_mm512_mask_mul_ps(_mm512_set1_ps(kLowest), seen(i + j), score(i + j), factor), of[j]);
      }
    }
  }
  __m512 largest = _mm512_max_ps(_mm512_max_ps(of[0], of[1]), _mm512_max_ps(of[2], of[3]));
  if constexpr (All) largest = _mm512_mul_ps(largest, factor);
  // A subtrahend up to kSlack below the largest score serves as well, and leaves earlier results as they are.
  const __mmask16 far = _mm512_cmp_ps_mask(largest, _mm512_add_ps(q.most, _mm512_set1_ps(kSlack)), _CMP_GT_OQ);
  if (far != 0) {
    // Subtrahends are integers: weights in bf16 times a power of two are exact.
    const __m512 most = _mm512_mask_mov_ps(q.most, far, _mm512_roundscale_ps(largest, 10));
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 kept = _mm512_mask_scalef_ps(one, far, one, _mm512_sub_ps(q.most, most));
    scaleWeights(tileWeights, before, kept);
    q.even = _mm512_mul_ps(q.even, kept);
    q.odd = _mm512_mul_ps(q.odd, kept);
    q.kept = _mm512_mul_ps(q.kept, kept);
    q.most = most;
    changed = true;
  }
  // Without a visible score there is no maximum to subtract.
  const __mmask16 none = _mm512_cmpeq_ps_mask(q.most, _mm512_set1_ps(kLowest));
  const __m512 shift = _mm512_mask_mov_ps(q.most, none, _mm512_setzero_ps());
  const auto weight = [&](std::size_t i) {
    const __m512 value = powerOfTwo(_mm512_fmsub_ps(score(i), factor, shift));
    if constexpr (All) return value;
    return _mm512_maskz_mov_ps(seen(i), value);
  };
  uint32_t* to = tileWeights + before * kTileQueries;
  for (std::size_t i = 0; i < kBlockKeys; i += 2, to += kTileQueries) {
    if (i % 8 == 0) step();
    const __m512 a = weight(i), b = weight(i + 1);
    q.even = _mm512_add_ps(q.even, a);
    q.odd = _mm512_add_ps(q.odd, b);
    _mm512_storeu_si512(to, pairs(a, b));
  }
}

template <std::size_t Columns>
void forward(const Bf16Forward& f) {
  Queries queries[Columns];
  int firstOfAll = 0, endOfAll = static_cast<int>(f.keys);
  for (std::size_t g = 0; g < Columns; ++g) {
    Queries& q = queries[g];
    q.first = _mm512_loadu_si512(f.firstKey + g * 16);
    q.end = _mm512_loadu_si512(f.endKey + g * 16);
    q.most = _mm512_set1_ps(kLowest);
    q.even = q.odd = _mm512_setzero_ps();
    q.kept = _mm512_set1_ps(1.0f);
    const int first = _mm512_reduce_max_epi32(q.first), end = _mm512_reduce_min_epi32(q.end);
    firstOfAll = first > firstOfAll ? first : firstOfAll;
    endOfAll = end < endOfAll ? end : endOfAll;
  }
  const __m512 factor = _mm512_set1_ps(f.factor);
  const std::size_t rows = f.width / 16;
  float *scores = f.scores, *nextScores = f.scores + kRowsOfTile;
  uint32_t *weights = f.weights, *priorWeights = f.weights + kTileKeys / 2 * kTileQueries;
  Products<Columns> products(f);
  products.scores(scores);
  products.finish();
  std::size_t priorSteps = 0;
  for (std::size_t tile = 0; tile < f.keys; tile += kTileKeys) {
    const std::size_t keys = f.keys - tile < kTileKeys ? f.keys - tile : kTileKeys, blocks = keys / kBlockKeys;
    bool changed = false;
    if (tile > 0) products.values(tile / 32 - kSteps, kSteps, priorWeights);
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t key = tile + block * kBlockKeys;
      if (key + kBlockKeys < f.keys) products.scores(nextScores);
      if (tile > 0) products.rows(rows * (block + 1) / blocks);
      const std::size_t perStep = (products.steps() + 2 * Columns - 1) / (2 * Columns);
      const auto step = [&] {
        for (std::size_t i = 0; i < perStep; ++i) products();
      };
      if (f.transform != nullptr) f.transform(f.context, scores, kRowsOfTile);
      // The largest score is that of the largest product with the factor unless the factor is negative.
      const bool all =
          f.factor >= 0 && static_cast<int>(key) >= firstOfAll && static_cast<int>(key + kBlockKeys) <= endOfAll;
      for (std::size_t g = 0; g < Columns; ++g) {
        if (all) {
          softmaxOfBlock<true>(scores + g * 16, key, factor, queries[g], weights + g * 16, block * 8, changed, step);
        } else {
          softmaxOfBlock<false>(scores + g * 16, key, factor, queries[g], weights + g * 16, block * 8, changed, step);
        }
      }
      products.finish();
      float* const used = scores;
      scores = nextScores;
      nextScores = used;
    }
    if (changed) {
      alignas(64) float kept[kTileQueries];
      for (std::size_t g = 0; g < Columns; ++g) {
        _mm512_storeu_ps(kept + g * 16, queries[g].kept);
        queries[g].kept = _mm512_set1_ps(1.0f);
      }
      if (tile > 0) kBf16Avx512.rescale(f.width, Columns * 16, kept, f.out);
    }
    priorSteps = keys / 32;
    uint32_t* const used = weights;
    weights = priorWeights;
    priorWeights = used;
  }
  products.values(f.keys / 32 - priorSteps, priorSteps, priorWeights);
  products.rows(rows);
  products.finish();
  for (std::size_t g = 0; g < Columns; ++g) {
    _mm512_storeu_ps(f.most + g * 16, queries[g].most);
    _mm512_storeu_ps(f.sum + g * 16, _mm512_add_ps(queries[g].even, queries[g].odd));
  }
}

}  // namespace

void forwardBf16Amx(const Bf16Forward& f) {
  const TileConfig config;
  _tile_loadconfig(&config);
  if (f.queries == 64) forward<4>(f);
  if (f.queries == 48) forward<3>(f);
  if (f.queries == 32) forward<2>(f);
  if (f.queries == 16) forward<1>(f);
  _tile_release();
}

}  // namespace seqpar::attn
