// The backward pass of the host block kernel on bf16 inputs: FlashAttention-2's loops (arXiv 2307.08691, Algorithm 2)
// with the kernels of bf16_kernels.h. Weights and gradients of scores are rounded to bf16 for their products; sums are
// fp32.
#include <limits>
#include <numbers>

#include "attn/block/host.h"
#include "attn/block/host_bf16.h"
#include "attn/block/host_rows.h"

namespace seqpar::attn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// sums [columns / kQueries][kGradientKeys + kDepth][kQueries] += rows^T b, for `count` keys from `first` on: rows
/// [keys][kQueries] of weights or gradients, b [columns / kQueries][queries / 2][kQueries]. Sums of other keys do not
/// change.
void addProduct(const Bf16Kernels& kernels, int64_t first, int64_t count, int64_t columns, int64_t queries,
                const uint16_t* rows, const uint32_t* b, float* sums) {
  const int64_t whole = count / 16 * 16;
  alignas(64) float last[16 * kQueries];
  for (int64_t column = 0; column < columns; column += kQueries) {
    const int64_t n = std::min(kQueries, columns - column);
    float* const to = sums + column * (kGradientKeys + kDepth) + first * kQueries;
    const uint32_t* const pairs = b + column * kQueries / 2;
    kernels.multiply(size(whole), size(n), size(queries), rows, size(kQueries), pairs, true, to);
    if (whole == count) continue;
    kernels.multiply(16, size(n), size(queries), rows + whole * kQueries, size(kQueries), pairs, false, last);
    for (int64_t i = whole; i < count; ++i) {
      rows::blend(to + i * kQueries, 1, last + (i - whole) * kQueries, 1, size(n));
    }
  }
}

/// Adds factor * sums, of `count` keys, to rows of `into`.
void addSums(const float* sums, int64_t count, float factor, const Tensor& into, int64_t b, int64_t token,
             int64_t head) {
  for (int64_t t = 0; t < count; ++t) {
    auto* const row = reinterpret_cast<float*>(into.at(b, token + t, head));
    for (int64_t column = 0; column < into.dim; column += kQueries) {
      const float* const from = sums + column * (kGradientKeys + kDepth) + t * kQueries;
      rows::blend(row + column, 1, from, factor, size(std::min(kQueries, into.dim - column)));
    }
  }
}

}  // namespace

bool HostBlock::usesBf16(const BlockGradientInputs& in) const {
  return shape_.softcap == 0 && in.dOut.type == seqparBfloat16 && usesBf16(BlockInputs{in.q, in.k, in.v});
}

// q^T, dOut^T, q and dOut of up to kQueries rows, as pairs.
void HostBlock::loadRowsBf16(const BlockGradientInputs& in, int64_t b, int64_t h, int64_t token, int64_t count,
                             Bf16Scratch& s) const {
  const int64_t queries = up(count, kDepth);
  const auto load = [&](const Tensor& tensor, int64_t dim, uint32_t* transposed, uint32_t* pairs) {
    copyRows(tensor, b, token, count, h, queries, dim, s.rows);
    bf16Kernels_->transpose32(size(queries), size(dim / 2), reinterpret_cast<const uint32_t*>(s.rows), size(dim / 2),
                              transposed, size(kQueries));
    for (int64_t column = 0; column < dim; column += kQueries) {
      bf16Kernels_->pair(size(queries), size(std::min(kQueries, dim - column)), s.rows + column, size(dim),
                         pairs + column * kQueries / 2);
    }
  };
  load(in.q, up(shape_.headDim, kDepth), s.q, s.qPairs);
  load(in.dOut, up(shape_.valueDim, kDepth), s.dOut, s.dOutPairs);
}

// Hidden keys after the tile may contain NaN, so the last step of the product with k^T uses a copy without them.
void HostBlock::addGradientTileBf16(const TileRange& keys, const BackwardPart& part, bool first,
                                    const GradientTile& tile, Bf16Scratch& s) const {
  const Bf16Kernels& kernels = *bf16Kernels_;
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, kDepth);
  const int64_t count = keys.end - keys.begin, whole = count / kDepth * kDepth;
  const size_t n = tile.queries;
  kernels.multiply(tile.keys, n, size(depth), s.k + keys.begin * depth, size(depth), s.q, false, s.scores);
  kernels.multiply(tile.keys, n, size(width), s.v + keys.begin * width, size(width), s.dOut, false, s.products);
  kernels.gradient(tile);
  if (part.keys) {
    const auto queries = static_cast<int64_t>(n);
    addProduct(kernels, keys.begin, count, width, queries, s.weightRows, s.dOutPairs, s.dv);
    addProduct(kernels, keys.begin, count, depth, queries, s.gradientRows, s.qPairs, s.dk);
  }
  if (!part.queries) return;
  if (whole > 0)
    kernels.multiply(size(depth), n, size(whole), s.kTransposed + keys.begin, size(kPitch), s.weights, !first, s.out);
  if (whole == count) return;
  copyLastColumns(s.kTransposed, depth, keys.begin + whole, count - whole, s.lastKeys);
  kernels.multiply(size(depth), n, size(kDepth), s.lastKeys, size(kDepth), s.weights + whole / 2 * kQueries,
                   !first || whole > 0, s.out);
}

void HostBlock::addGradientTilesBf16(const Rectangle& r, const BackwardPart& part, int64_t row, int64_t count,
                                     TileRange seen, int64_t chunk, const float* lse, const float* delta,
                                     Bf16Scratch& s) const {
  const int64_t queries = up(count, kDepth);
  alignas(64) int32_t firstKey[kTileQueries], endKey[kTileQueries];
  for (int64_t column = seen.begin; column < seen.end; column += kKeys) {
    const TileRange tile{column, std::min(column + kKeys, seen.end)};
    for (int64_t i = 0; i < queries; ++i) {
      TileRange mine = i < count ? seenBy(r, row + i, tile) : TileRange{tile.begin, tile.begin};
      if (lse[i] == kNothing) mine.end = mine.begin;  // scores of -inf only: no key counts
      firstKey[i] = static_cast<int32_t>(mine.begin - tile.begin);
      endKey[i] = static_cast<int32_t>(std::max(mine.begin, mine.end) - tile.begin);
    }
    const size_t keys = size(up(tile.end - tile.begin, kDepth));
    addGradientTileBf16({tile.begin - chunk, tile.end - chunk}, part, column == seen.begin,
                        {s.scores, s.products, keys, size(queries), shape_.scale * std::numbers::log2e_v<float>,
                         firstKey, endKey, lse, delta, s.weightRows, s.gradientRows, s.weights},
                        s);
  }
}

// As addGradientTilesBf16(), with Bf16Kernels::backward().
void HostBlock::backwardTilesBf16(const Rectangle& r, const BackwardPart& part, int64_t row, int64_t count,
                                  TileRange seen, int64_t chunk, const float* lse, const float* delta,
                                  Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, kDepth), queries = up(count, kDepth);
  const int64_t begin = (seen.begin - chunk) / kDepth * kDepth, keys = up(seen.end - chunk - begin, kDepth);
  const TileRange visible{seen.begin - chunk - begin, seen.end - chunk - begin};
  alignas(64) int32_t firstKey[kTileQueries], endKey[kTileQueries];
  TileRange byAll{0, keys};
  for (int64_t i = 0; i < queries; ++i) {
    TileRange mine{0, 0};
    if (i < count && lse[i] != kNothing) {  // scores of -inf only: no key counts
      mine = seenBy(r, row + i, seen);
      mine = {mine.begin - chunk - begin, std::max(mine.begin, mine.end) - chunk - begin};
    }
    firstKey[i] = static_cast<int32_t>(mine.begin);
    endKey[i] = static_cast<int32_t>(mine.end);
    byAll = {std::max(byAll.begin, mine.begin), std::min(byAll.end, mine.end)};
  }
  const uint16_t* const kTransposed = s.kTransposed + begin * depth;
  const auto onlyVisible = [&](int64_t first, uint16_t* to) {
    return visibleTiles(kTransposed + first * depth, depth, {visible.begin - first, visible.end - first}, to);
  };
  bf16Kernels_->backward({.depth = size(depth),
                          .width = size(width),
                          .keys = size(keys),
                          .visibleBegin = size(visible.begin),
                          .visibleEnd = size(visible.end),
                          .queries = size(queries),
                          .q = s.q,
                          .dOut = s.dOut,
                          .qPairs = s.qPairs,
                          .dOutPairs = s.dOutPairs,
                          .k = s.k + begin * depth,
                          .v = s.v + begin * width,
                          .kTransposed = kTransposed,
                          .firstKeys = onlyVisible(0, s.lastKeys),
                          .lastKeys = onlyVisible(keys - kDepth, s.lastKeys + depth * kDepth),
                          .factor = shape_.scale * std::numbers::log2e_v<float>,
                          .firstKey = firstKey,
                          .endKey = endKey,
                          .seenByAllFirst = static_cast<int32_t>(byAll.begin),
                          .seenByAllEnd = static_cast<int32_t>(byAll.end),
                          .lse = lse,
                          .delta = delta,
                          .scores = s.scores,
                          .gradientPairs = s.weights,
                          .apart = s.products,
                          .apartColumns = size(up(std::max(depth, width), kQueries)),
                          .dq = part.queries ? s.out : nullptr,
                          .dk = part.keys ? s.dk + begin * kQueries : nullptr,
                          .dv = part.keys ? s.dv + begin * kQueries : nullptr,
                          .sumRows = size(kGradientKeys + kDepth)});
}

// k, v and k^T of a chunk, as tiles for Bf16Kernels::backward() if there is one.
void HostBlock::loadKeysBf16(const BlockGradientInputs& in, int64_t b, int64_t token, int64_t count, int64_t kvHead,
                             Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, kDepth);
  if (bf16Kernels_->backward == nullptr) {
    copyRows(in.k, b, token, count, kvHead, count + kDepth, depth, s.k);
    copyRows(in.v, b, token, count, kvHead, count + kDepth, width, s.v);
    bf16Kernels_->transpose16(size(up(count, kDepth)), size(depth), s.k, size(depth), s.kTransposed, size(kPitch));
    return;
  }
  for (int64_t t = 0; t < count; t += kDepth) {
    const int64_t some = std::min(kDepth, count - t);
    copyRows(in.k, b, token + t, some, kvHead, kDepth, depth, s.rows);
    tileRows(s.rows, depth, s.k + t * depth);
    tileTransposed(*bf16Kernels_, s.rows, depth, s.kTransposed + t * depth);
    copyRows(in.v, b, token + t, some, kvHead, kDepth, width, s.rows);
    tileRows(s.rows, width, s.v + t * width);
  }
}

void HostBlock::backwardBf16(const BlockGradientInputs& in, const Rectangle& r, const BlockGradients& into, int64_t b,
                             int64_t kvHead, const BackwardPart& part, Bf16Scratch& s) const {
  const int64_t depth = up(shape_.headDim, kDepth), width = up(shape_.valueDim, kDepth);
  const auto [firstHead, endHead] = queryHeads(shape_, kvHead);
  alignas(64) float lse[kTileQueries] = {}, delta[kTileQueries] = {};
  for (int64_t chunk = part.firstColumn; chunk < part.endColumn; chunk += kGradientKeys) {
    const int64_t columns = std::min(kGradientKeys, part.endColumn - chunk);
    loadKeysBf16(in, b, r.column + chunk, columns, kvHead, s);
    std::fill_n(s.dk, up(depth, kQueries) * (kGradientKeys + kDepth), 0.0f);
    std::fill_n(s.dv, up(width, kQueries) * (kGradientKeys + kDepth), 0.0f);
    for (int64_t h = firstHead; h < endHead; ++h) {
      for (int64_t row = part.firstRow; row < part.endRow; row += kQueries) {
        const int64_t count = std::min(kQueries, part.endRow - row), token = r.row + row, queries = up(count, kDepth);
        const TileRange seen = seenByAny(r, row, count, {chunk, chunk + columns});
        if (seen.empty()) continue;
        loadRowsBf16(in, b, h, token, count, s);
        for (int64_t i = 0; i < count; ++i) {
          lse[i] = *in.lse.at(b, h, token + i) * std::numbers::log2e_v<float>;
          delta[i] = *in.delta.at(b, h, token + i);
        }
        if (bf16Kernels_->backward != nullptr) {
          backwardTilesBf16(r, part, row, count, seen, chunk, lse, delta, s);
        } else {
          addGradientTilesBf16(r, part, row, count, seen, chunk, lse, delta, s);
        }
        if (!part.queries) continue;
        auto* const dq = reinterpret_cast<float*>(s.rows);  // [queries][depth]
        bf16Kernels_->transpose32(size(depth), size(queries), reinterpret_cast<const uint32_t*>(s.out), size(kQueries),
                                  reinterpret_cast<uint32_t*>(dq), size(depth));
        for (int64_t i = 0; i < count; ++i) {
          rows::blend(reinterpret_cast<float*>(into.dq.at(b, token + i, h)), 1, dq + i * depth, shape_.scale,
                      size(shape_.headDim));
        }
      }
    }
    if (!part.keys) continue;
    addSums(s.dk, columns, shape_.scale, into.dk, b, r.column + chunk, kvHead);
    addSums(s.dv, columns, 1, into.dv, b, r.column + chunk, kvHead);
  }
}

}  // namespace seqpar::attn
