// The forward pass of the host block kernel on bf16 inputs, with the kernels of bf16_kernels.h. Weights are rounded to
// bf16 for their product with v, as in FlashAttention-2 (arXiv 2307.08691); sums and results are fp32.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attn/block/host.h"
#include "attn/block/host_bf16.h"
#include "attn/block/host_rows.h"
#include "attn/block/host_tiles.h"
#include "base/convert.h"
#include "kernels/attn/softmax/merge.h"

namespace seqpar::attn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Scores times this are base-2 logarithms.
float scoreFactor(const BlockShape& shape) {
  return (shape.softcap != 0 ? 1.0f : shape.scale) * std::numbers::log2e_v<float>;
}

/// softcap tanh(scale score / softcap); `shape` is a BlockShape.
void capScores(const void* shape, float* scores, size_t count) {
  const auto& of = *static_cast<const BlockShape*>(shape);
  rows::scale(scores, count, of.scale);
  rows::cap(scores, count, of.softcap);
}

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
  take(s.lastKeys, 2 * std::max(depth, width) * kDepth);
  take(s.q, depth / 2 * kQueries);
  take(s.weights, kKeys * kQueries);
  take(s.scores, kKeys * kQueries);
  take(s.out, std::max(depth, width) * kQueries);
  if (!shape_.training) return;
  take(s.kTransposed, depth * kPitch);
  take(s.dOut, width / 2 * kQueries);
  take(s.qPairs, kQueries / 2 * up(depth, kQueries));
  take(s.dOutPairs, kQueries / 2 * up(width, kQueries));
  take(s.products, std::max(kKeys * kQueries, 32 * up(std::max(depth, width), kQueries)));
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

// Hidden keys after the tile may contain NaN, so the last step of the product uses a copy of v without them.
void HostBlock::addValuesBf16(const TileRange& keys, size_t queries, bool first, Bf16Scratch& s) const {
  const int64_t width = up(shape_.valueDim, 16), count = keys.end - keys.begin, whole = count / kDepth * kDepth;
  if (whole > 0) {
    bf16Kernels_->multiply(size(width), queries, size(whole), s.v + keys.begin, size(kPitch), s.weights, !first, s.out);
  }
  if (whole == count) return;
  copyLastColumns(s.v, width, keys.begin + whole, count - whole, s.lastKeys);
  bf16Kernels_->multiply(size(width), queries, size(kDepth), s.lastKeys, size(kDepth), s.weights + whole / 2 * kQueries,
                         !first || whole > 0, s.out);
}

// out^T, sums and largest scores of a tile of queries.
void HostBlock::addTilesBf16(const Rectangle& r, int64_t row, int64_t count, TileRange seen, int64_t chunk, float* most,
                             float* sum, Bf16Scratch& s) const {
  const int64_t queries = up(count, 16), width = up(shape_.valueDim, 16), depth = up(shape_.headDim, kDepth);
  const size_t n = size(queries);
  alignas(64) float kept[kTileQueries];
  alignas(64) int32_t firstKey[kTileQueries], endKey[kTileQueries];
  std::fill_n(most, kQueries, kNothing);
  std::fill_n(sum, kQueries, 0.0f);
  for (int64_t column = seen.begin; column < seen.end; column += kKeys) {
    const TileRange tile{column, std::min(column + kKeys, seen.end)}, keys{tile.begin - chunk, tile.end - chunk};
    const size_t rows = size(up(keys.end - keys.begin, kDepth));
    for (int64_t i = 0; i < queries; ++i) {
      const TileRange mine = i < count ? seenBy(r, row + i, tile) : TileRange{tile.begin, tile.begin};
      firstKey[i] = static_cast<int32_t>(mine.begin - tile.begin);
      endKey[i] = static_cast<int32_t>(std::max(mine.begin, mine.end) - tile.begin);
    }
    bf16Kernels_->multiply(rows, n, size(depth), s.k + keys.begin * depth, size(depth), s.q, false, s.scores);
    if (shape_.softcap != 0) capScores(&shape_, s.scores, rows * size(kQueries));
    const bool first = column == seen.begin;
    const bool changed =
        bf16Kernels_->softmax({s.scores, rows, n, scoreFactor(shape_), firstKey, endKey, most, sum, kept, s.weights});
    if (!first && changed) bf16Kernels_->rescale(size(width), n, kept, s.out);
    addValuesBf16(keys, n, first, s);
  }
}

// k and v^T as tiles of 16 rows of 32 elements, for Bf16Kernels::forward().
void HostBlock::loadTilesBf16(const BlockInputs& in, int64_t b, int64_t token, int64_t count, int64_t kvHead,
                              Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, 16);
  uint16_t *k = s.k, *v = s.v;
  for (int64_t t = 0; t < count; t += kDepth, k += depth * kDepth, v += width * kDepth) {
    const int64_t some = std::min(kDepth, count - t);
    copyRows(in.k, b, token + t, some, kvHead, kDepth, depth, s.rows);
    tileRows(s.rows, depth, k);
    copyRows(in.v, b, token + t, some, kvHead, kDepth, width, s.rows);
    tileTransposed(*bf16Kernels_, s.rows, width, v);
  }
}

// As addTilesBf16(). Hidden keys next to the visible ones may contain NaN, so products use copies of v without them.
void HostBlock::forwardTilesBf16(const Rectangle& r, int64_t row, int64_t count, TileRange seen, int64_t chunk,
                                 float* most, float* sum, Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, 16), queries = up(count, 16);
  const int64_t begin = (seen.begin - chunk) / kDepth * kDepth, keys = up(seen.end - chunk - begin, kDepth);
  const TileRange visible{seen.begin - chunk - begin, seen.end - chunk - begin};
  alignas(64) int32_t firstKey[kTileQueries], endKey[kTileQueries];
  for (int64_t i = 0; i < queries; ++i) {
    TileRange mine{0, keys};  // results of rows from `count` on are not used
    if (i < count) mine = seenBy(r, row + i, seen);
    if (i < count) mine = {mine.begin - chunk - begin, std::max(mine.begin, mine.end) - chunk - begin};
    firstKey[i] = static_cast<int32_t>(mine.begin);
    endKey[i] = static_cast<int32_t>(mine.end);
  }
  const uint16_t* const v = s.v + begin * width;
  const auto onlyVisible = [&](int64_t first, uint16_t* to) {
    return visibleTiles(v + first * width, width, {visible.begin - first, visible.end - first}, to);
  };
  bf16Kernels_->forward({.depth = size(depth),
                         .width = size(width),
                         .keys = size(keys),
                         .queries = size(queries),
                         .q = s.q,
                         .k = s.k + begin * depth,
                         .v = v,
                         .firstValues = onlyVisible(0, s.lastKeys),
                         .lastValues = onlyVisible(keys - kDepth, s.lastKeys + width * kDepth),
                         .factor = scoreFactor(shape_),
                         .transform = shape_.softcap != 0 ? capScores : nullptr,
                         .context = &shape_,
                         .firstKey = firstKey,
                         .endKey = endKey,
                         .scores = s.scores,
                         .weights = s.weights,
                         .out = s.out,
                         .most = most,
                         .sum = sum});
}

void HostBlock::forwardBf16(const BlockInputs& in, const Rectangle& r, const Partial& into, int64_t b, int64_t kvHead,
                            int64_t firstRow, int64_t rows, Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, 16);
  const auto [firstHead, endHead] = queryHeads(shape_, kvHead);
  const bool tiled = bf16Kernels_->forward != nullptr;
  TileRange all = seenByAny(r, firstRow, rows, {0, r.columns});
  if (tiled) all.begin = all.begin / kDepth * kDepth;
  alignas(64) float most[kTileQueries], sum[kTileQueries];
  // Chunks end at fixed keys, for any number of threads.
  for (int64_t chunk = all.begin, columns = 0; chunk < all.end; chunk += columns) {
    columns = std::min((chunk / kForwardKeys16 + 1) * kForwardKeys16, all.end) - chunk;
    if (tiled) {
      loadTilesBf16(in, b, r.column + chunk, columns, kvHead, s);
    } else {
      loadBf16(in, b, r.column + chunk, columns, kvHead, s);
    }
    for (int64_t h = firstHead; h < endHead; ++h) {
      for (int64_t row = firstRow; row < firstRow + rows; row += kQueries) {
        const int64_t count = std::min(kQueries, firstRow + rows - row), queries = up(count, 16);
        const TileRange seen = seenByAny(r, row, count, {chunk, chunk + columns});
        if (seen.empty()) continue;
        copyRows(in.q, b, r.row + row, count, h, queries, depth, s.rows);
        bf16Kernels_->transpose32(size(queries), size(depth / 2), reinterpret_cast<const uint32_t*>(s.rows),
                                  size(depth / 2), s.q, size(kQueries));
        if (tiled) {
          forwardTilesBf16(r, row, count, seen, chunk, most, sum, s);
        } else {
          addTilesBf16(r, row, count, seen, chunk, most, sum, s);
        }
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

void HostBlock::mergeRow(const Partial& into, int64_t b, int64_t h, int64_t token, float rowLse, float* row,
                         float factor) const {
  const size_t width = size(shape_.valueDim);
  float* const lse = into.lse.at(b, h, token);
  if (into.out.type != seqparFloat32) {  // the only results of the row
    rows::scale(row, width, factor);
    fromFloat(row, into.out.at(b, token, h), into.out.type, width);
    *lse = rowLse;
    return;
  }
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
