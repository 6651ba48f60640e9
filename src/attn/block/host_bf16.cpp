// The forward pass of the host block kernel on bf16 inputs, with the kernels of bf16_kernels.h. Weights are rounded to
// bf16 for their product with v, as in FlashAttention-2 (arXiv 2307.08691); sums and results are fp32.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>
#include <utility>

#include "attn/block/host.h"
#include "attn/block/host_bf16.h"
#include "attn/block/host_rows.h"
#include "attn/block/host_tiles.h"
#include "kernels/attn/softmax/merge.h"

namespace seqpar::attn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

}  // namespace

bool HostBlock::usesBf16(const BlockInputs& in) const {
  const auto bf16 = [](const Tensor& tensor) { return tensor.type == seqparBfloat16; };
  return bf16Kernels_ != nullptr && bf16(in.q) && bf16(in.k) && bf16(in.v);
}

void HostBlock::carveBf16(Arena& arena, Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, kDepth);
  const auto take = [&](auto*& to, int64_t count) {
    to = static_cast<std::remove_reference_t<decltype(to)>>(arena.take(size(count) * sizeof *to));
  };
  take(s.rows, 2 * kQueries * std::max(depth, width));
  take(s.k, (kForwardKeys16 + kDepth) * depth);
  take(s.v, width * kPitch);
  take(s.lastKeys, std::max(depth, width) * kDepth);
  take(s.q, depth / 2 * kQueries);
  take(s.weights, kKeys * kQueries);
  take(s.scores, 2 * kKeys * kQueries);
  take(s.out, std::max(depth, width) * kQueries);
  if (!shape_.training) return;
  take(s.kTransposed, depth * kPitch);
  take(s.dOut, width / 2 * kQueries);
  take(s.qPairs, kQueries / 2 * up(depth, kQueries));
  take(s.dOutPairs, kQueries / 2 * up(width, kQueries));
  take(s.products, kKeys * kQueries);
  take(s.weightRows, kKeys * kQueries);
  take(s.gradientRows, kKeys * kQueries);
  take(s.dk, up(depth, kQueries) * (kGradientKeys + kDepth));
  take(s.dv, up(width, kQueries) * (kGradientKeys + kDepth));
}

void HostBlock::loadBf16(const BlockInputs& in, int64_t b, int64_t token, int64_t count, int64_t kvHead,
                         Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, 16);
  copyRows(in.k, b, token, count, kvHead, count + kDepth, depth, s.k);
  for (int64_t t = 0; t < count; t += kQueries) {
    const int64_t some = std::min(kQueries, count - t), rows = up(some, kDepth);
    copyRows(in.v, b, token + t, some, kvHead, rows, width, s.rows);
    bf16Kernels_->transpose16(size(rows), size(width), s.rows, size(width), s.v + t, size(kPitch));
  }
}

Bf16Product HostBlock::scoresBf16(const TileRange& keys, int64_t queries, float* scores, const Bf16Scratch& s) const {
  const size_t depth = size(up(shape_.headDim, kDepth));
  return {size(up(keys.end - keys.begin, kDepth)),
          size(queries),
          depth,
          s.k + size(keys.begin) * depth,
          depth,
          s.q,
          false,
          scores};
}

// Hidden keys after the tile may contain NaN, so the last step of the product uses a copy of v without them.
size_t HostBlock::valuesBf16(const TileRange& keys, int64_t queries, bool first, const uint32_t* weights,
                             Bf16Scratch& s, std::span<Bf16Product, 2> to) const {
  const int64_t width = up(shape_.valueDim, 16), count = keys.end - keys.begin, whole = count / kDepth * kDepth;
  Bf16Product product{size(width), size(queries), size(whole), s.v + keys.begin, size(kPitch), weights, !first, s.out};
  size_t used = 0;
  if (whole > 0) to[used++] = product;
  if (whole == count) return used;
  copyLastColumns(s.v, width, keys.begin + whole, count - whole, s.lastKeys);
  product.k = product.strideA = size(kDepth);
  product.a = s.lastKeys;
  product.b += whole / 2 * kQueries;
  product.accumulate |= used > 0;
  to[used++] = product;
  return used;
}

// out^T, sums and largest scores of a tile of queries. The softmax of a tile of keys is computed next to the products
// of the following tile's scores and of the preceding tile's weights.
void HostBlock::addTilesBf16(const Rectangle& r, int64_t row, int64_t count, TileRange seen, int64_t chunk, float* most,
                             float* sum, Bf16Scratch& s) const {
  const Bf16Kernels& kernels = *bf16Kernels_;
  const int64_t queries = up(count, 16), width = up(shape_.valueDim, 16);
  const size_t n = size(queries);
  const auto multiply = [&](const Bf16Product& p) {
    kernels.multiply(p.m, p.n, p.k, p.a, p.strideA, p.b, p.accumulate, p.c);
  };
  const auto keysFrom = [&](int64_t column) {
    return TileRange{column - chunk, std::min(column + kKeys, seen.end) - chunk};
  };
  alignas(64) float kept[kTileQueries];
  alignas(64) int32_t firstKey[kTileQueries], endKey[kTileQueries];
  float *scores = s.scores, *nextScores = s.scores + kKeys * kQueries;
  uint32_t *weights = s.weights, *priorWeights = s.weights + kKeys / 2 * kQueries;
  multiply(scoresBf16(keysFrom(seen.begin), queries, scores, s));
  TileRange prior{};
  for (int64_t column = seen.begin; column < seen.end; column += kKeys) {
    const TileRange keys = keysFrom(column), tile{column, keys.end + chunk};
    const size_t rows = size(up(keys.end - keys.begin, kDepth));
    for (int64_t i = 0; i < queries; ++i) {
      const TileRange mine = i < count ? seenBy(r, row + i, tile) : TileRange{tile.begin, tile.begin};
      firstKey[i] = static_cast<int32_t>(mine.begin - tile.begin);
      endKey[i] = static_cast<int32_t>(std::max(mine.begin, mine.end) - tile.begin);
    }
    float factor = shape_.scale * std::numbers::log2e_v<float>;
    if (shape_.softcap != 0) {
      rows::scale(scores, rows * size(kQueries), shape_.scale);
      rows::cap(scores, rows * size(kQueries), shape_.softcap);
      factor = std::numbers::log2e_v<float>;
    }
    Bf16Product products[3];
    size_t used = 0;
    if (!prior.empty()) {
      used = valuesBf16(prior, queries, prior.begin + chunk == seen.begin, priorWeights, s,
                        std::span(products).first<2>());
    }
    if (tile.end < seen.end) products[used++] = scoresBf16(keysFrom(tile.end), queries, nextScores, s);
    const bool changed =
        kernels.softmax({scores, rows, n, factor, firstKey, endKey, most, sum, kept, weights}, products, used);
    if (!prior.empty() && changed) kernels.rescale(size(width), n, kept, s.out);
    prior = keys;
    std::swap(scores, nextScores);
    std::swap(weights, priorWeights);
  }
  Bf16Product last[2];
  const size_t products = valuesBf16(prior, queries, prior.begin + chunk == seen.begin, priorWeights, s, last);
  for (size_t i = 0; i < products; ++i) multiply(last[i]);
}

void HostBlock::forwardBf16(const BlockInputs& in, const Rectangle& r, const Partial& into, int64_t b, int64_t kvHead,
                            int64_t firstRow, int64_t rows, Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, 16);
  const auto [firstHead, endHead] = queryHeads(shape_, kvHead);
  const TileRange all = seenByAny(r, firstRow, rows, {0, r.columns});
  alignas(64) float most[kTileQueries], sum[kTileQueries];
  // Chunks end at fixed keys, for any number of threads.
  for (int64_t chunk = all.begin, columns = 0; chunk < all.end; chunk += columns) {
    columns = std::min((chunk / kForwardKeys16 + 1) * kForwardKeys16, all.end) - chunk;
    loadBf16(in, b, r.column + chunk, columns, kvHead, s);
    for (int64_t h = firstHead; h < endHead; ++h) {
      for (int64_t row = firstRow; row < firstRow + rows; row += kQueries) {
        const int64_t count = std::min(kQueries, firstRow + rows - row), queries = up(count, 16);
        const TileRange seen = seenByAny(r, row, count, {chunk, chunk + columns});
        if (seen.empty()) continue;
        copyRows(in.q, b, r.row + row, count, h, queries, depth, s.rows);
        bf16Kernels_->transpose32(size(queries), size(depth / 2), reinterpret_cast<const uint32_t*>(s.rows),
                                  size(depth / 2), s.q, size(kQueries));
        std::fill_n(most, kQueries, kNothing);
        std::fill_n(sum, kQueries, 0.0f);
        addTilesBf16(r, row, count, seen, chunk, most, sum, s);
        auto* const out = reinterpret_cast<float*>(s.rows);  // [queries][width]
        bf16Kernels_->transpose32(size(width), size(queries), reinterpret_cast<const uint32_t*>(s.out), size(kQueries),
                                  reinterpret_cast<uint32_t*>(out), size(width));
        for (int64_t i = 0; i < count; ++i) {
          if (sum[i] == 0) continue;
          const float lse = (most[i] == kNothing ? 0.0f : most[i]) + std::log2(sum[i]);
          mergeRow(into, b, h, r.row + row + i, lse * std::numbers::ln2_v<float>, out + i * width, 1 / sum[i]);
        }
      }
    }
  }
}

void HostBlock::mergeRow(const Partial& into, int64_t b, int64_t h, int64_t token, float rowLse, const float* row,
                         float factor) const {
  const size_t width = size(shape_.valueDim);
  float* const lse = into.lse.at(b, h, token);
  const auto weights = mergeWeights(*lse, rowLse);
  auto* const out = reinterpret_cast<float*>(into.out.at(b, token, h));
  if (*lse == kNothing) {
    rows::scaledCopy(row, width, factor, out);
  } else {
    rows::blend(out, weights.a, row, weights.b * factor, width);
  }
  *lse = weights.lse;
}

}  // namespace seqpar::attn
