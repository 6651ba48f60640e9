// The backward pass of the host block kernel.
#include <algorithm>

#include "attn/block/host.h"
#include "attn/block/host_matrix.h"
#include "base/sgemm.h"

namespace seqpar::attn {

void HostBlock::backward(const BlockGradientInputs& in, std::span<const Rectangle> rectangles,
                         const BlockGradients& into) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  exec_.launch([this, in, rectangles, into] {
    const int64_t units = shape_.batch * shape_.kvHeads;
    if (units < exec_.pool().threads()) {
      for (const auto& r : rectangles) backwardByParts(in, r, into);
      return;
    }
    exec_.pool().each(size(units), [&](size_t unit, int thread) {
      const auto b = static_cast<int64_t>(unit) / shape_.kvHeads, kvHead = static_cast<int64_t>(unit) % shape_.kvHeads;
      for (const auto& r : rectangles) {
        backwardTask(in, r, into, b, kvHead, {0, r.rows, 0, r.columns, true, true}, scratch_[size(thread)]);
      }
    });
  });
}

// Parts for keys and parts for queries have separate sums, so no sum is shared: 7 products instead of 5, on all
// threads. The order of the terms of every sum is the same as in one pass.
void HostBlock::backwardByParts(const BlockGradientInputs& in, const Rectangle& r, const BlockGradients& into) {
  auto& pool = exec_.pool();
  const int64_t units = shape_.batch * shape_.kvHeads;
  const int64_t height = usesBf16(in) ? int64_t{kTileQueries} : rowsOfTile(r, units);
  const int64_t chunks = (r.columns + kKeyChunk - 1) / kKeyChunk, tiles = (r.rows + height - 1) / height;
  const int64_t parts = std::min(tiles, 2 * int64_t{pool.threads()});
  pool.each(size(units * (chunks + parts)), [&](size_t task, int thread) {
    const int64_t unit = static_cast<int64_t>(task) % units, piece = static_cast<int64_t>(task) / units;
    BackwardPart part{0, r.rows, 0, r.columns, false, false};
    if (piece < chunks) {
      part.firstColumn = piece * kKeyChunk;
      part.endColumn = std::min(r.columns, part.firstColumn + kKeyChunk);
      part.keys = true;
    } else {
      part.firstRow = (piece - chunks) * tiles / parts * height;
      part.endRow = std::min(r.rows, (piece - chunks + 1) * tiles / parts * height);
      part.queries = true;
    }
    backwardTask(in, r, into, unit / shape_.kvHeads, unit % shape_.kvHeads, part, scratch_[size(thread)]);
  });
}

// Packs the operands of products once: keys and values for all queries of a chunk, queries and gradients of outputs for
// all its keys. Sums of dk and dv are dense, so that their rows do not share sets of the caches.
void HostBlock::backwardTask(const BlockGradientInputs& in, const Rectangle& r, const BlockGradients& into, int64_t b,
                             int64_t kvHead, const BackwardPart& part, Scratch& s) {
  if (usesBf16(in)) return backwardBf16(in, r, into, b, kvHead, part, s.bf16);
  const size_t dim = size(shape_.headDim), width = size(shape_.valueDim), pitch = size(kColumns);
  const auto [firstHead, endHead] = queryHeads(shape_, kvHead);
  const int64_t height = rowsOfTile(r, shape_.batch * shape_.kvHeads);
  for (int64_t chunk = part.firstColumn; chunk < part.endColumn; chunk += kKeyChunk) {
    const TileRange keys{chunk, std::min(chunk + kKeyChunk, part.endColumn)};
    uint32_t packed = 0;  // a bit per tile
    for (int64_t h = firstHead; h < endHead; ++h) {
      for (int64_t row = part.firstRow; row < part.endRow; row += height) {
        const int64_t count = std::min(height, part.endRow - row), token = r.row + row;
        const TileRange seen = seenByAny(r, row, count, keys);
        if (seen.empty()) continue;
        const Matrix q = load(in.q, b, token, count, h, shape_.scale, s.q, Copy::Always);
        const Matrix dOut = load(in.dOut, b, token, count, h, 1, s.dOut, Copy::Always);
        if (part.keys) {
          pack(size(count), dim, {q.data, q.stride}, s.packedQ);
          pack(size(count), width, {dOut.data, dOut.stride}, s.packedDOut);
        }
        for (int64_t column = seen.begin / kColumns * kColumns; column < seen.end; column += kColumns) {
          const int64_t number = (column - chunk) / kColumns, columns = std::min(kColumns, r.columns - column);
          const PackedTile packs = packedTile(s, number);
          if ((packed >> number & 1) == 0) {
            packed |= 1U << number;
            packTile(in, r, b, kvHead, {column, column + columns}, part, packs, s);
            if (part.keys) {
              std::fill_n(packs.dk, size(columns) * dim, 0.0f);
              std::fill_n(packs.dv, size(columns) * width, 0.0f);
            }
          }
          const TileRange tile{std::max(column, seen.begin), std::min(column + columns, seen.end)};
          const size_t begin = size(tile.begin - column), breadth = size(tile.end - tile.begin);
          const auto [from, to] = packedColumns(begin, begin + breadth, columns);
          multiplyPacked(size(count), to - from, dim, {q.data, q.stride}, {packs.keys, dim, 0, from}, false,
                         s.scores + from, pitch);
          multiplyPacked(size(count), to - from, width, {dOut.data, dOut.stride}, {packs.values, width, 0, from}, false,
                         s.gradients + from, pitch);
          for (int64_t i = 0; i < count; ++i) {
            softmaxGradients(in, {b, h, token + i}, seenBy(r, row + i, tile), tile, s.scores + size(i) * pitch + begin,
                             s.gradients + size(i) * pitch + begin);
          }
          const float *const weights = s.scores + begin, *const gradients = s.gradients + begin;
          if (part.keys) {
            multiplyPacked(breadth, width, size(count), {weights, pitch, true}, {s.packedDOut, size(count)}, true,
                           packs.dv + begin * width, width);
            multiplyPacked(breadth, dim, size(count), {gradients, pitch, true}, {s.packedQ, size(count)}, true,
                           packs.dk + begin * dim, dim);
          }
          if (!part.queries) continue;
          multiplyPacked(size(count), dim, breadth, {gradients, pitch}, {packs.keyRows, size(columns), begin, 0}, true,
                         reinterpret_cast<float*>(into.dq.at(b, token, h)), size(into.dq.tokenStride));
        }
      }
    }
    for (int64_t number = 0; part.keys && packed >> number != 0; ++number) {
      if ((packed >> number & 1) == 0) continue;
      const int64_t first = chunk + number * kColumns;
      const PackedTile packs = packedTile(s, number);
      for (int64_t i = 0; i < std::min(kColumns, r.columns - first); ++i) {
        const int64_t key = r.column + first + i;
        rows::blend(reinterpret_cast<float*>(into.dk.at(b, key, kvHead)), 1, packs.dk + size(i) * dim, 1, dim);
        rows::blend(reinterpret_cast<float*>(into.dv.at(b, key, kvHead)), 1, packs.dv + size(i) * width, 1, width);
      }
    }
  }
}

HostBlock::PackedTile HostBlock::packedTile(const Scratch& s, int64_t number) const {
  const size_t n = size(number), dim = size(shape_.headDim), width = size(shape_.valueDim), pitch = size(kColumns);
  return {s.packedKeys + n * packedSize(dim, pitch), s.packedValues + n * packedSize(pitch, width),
          s.packedKeyRows + n * packedSize(pitch, dim), s.dk + n * pitch * dim, s.dv + n * pitch * width};
}

void HostBlock::packTile(const BlockGradientInputs& in, const Rectangle& r, int64_t b, int64_t kvHead, TileRange keys,
                         const BackwardPart& part, const PackedTile& to, Scratch& s) const {
  const int64_t count = keys.end - keys.begin, key = r.column + keys.begin;
  const size_t dim = size(shape_.headDim), width = size(shape_.valueDim);
  const Matrix k = load(in.k, b, key, count, kvHead, 1, s.k);
  pack(dim, size(count), {k.data, k.stride, true}, to.keys);
  const Matrix v = load(in.v, b, key, count, kvHead, 1, s.v);
  pack(width, size(count), {v.data, v.stride, true}, to.values);
  if (!part.queries) return;
  const Matrix scaled = load(in.k, b, key, count, kvHead, shape_.scale, s.k);
  pack(size(count), dim, {scaled.data, scaled.stride}, to.keyRows);
}

void HostBlock::softmaxGradients(const BlockGradientInputs& in, const Row& row, TileRange mine, TileRange tile,
                                 float* scores, float* gradients) const {
  const float lse = *in.lse.at(row.batch, row.head, row.token), delta = *in.delta.at(row.batch, row.head, row.token);
  if (lse == kNothing) mine.end = mine.begin;  // scores of -inf only: no key counts
  clearOutside(scores, tile, mine);
  clearOutside(gradients, tile, mine);
  if (mine.empty()) return;
  float* const first = scores + (mine.begin - tile.begin);
  float* const gradient = gradients + (mine.begin - tile.begin);
  const size_t length = size(mine.end - mine.begin);
  if (shape_.softcap != 0) {
    rows::cap(first, length, shape_.softcap);
    rows::capGradient(first, gradient, length, delta, shape_.softcap);
    rows::exponentiate(first, length, lse);
    rows::softmaxGradient(first, gradient, length, 0);
  } else {
    rows::exponentiate(first, length, lse);
    rows::softmaxGradient(first, gradient, length, delta);
  }
}

}  // namespace seqpar::attn
