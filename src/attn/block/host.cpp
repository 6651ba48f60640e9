#include "attn/block/host.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attn/block/host_bf16.h"
#include "attn/block/host_matrix.h"
#include "attn/block/host_rows.h"
#include "attn/block/host_tiles.h"
#include "base/convert.h"
#include "base/sgemm.h"
#include "kernels/attn/softmax/merge.h"

namespace seqpar::attn {
namespace {

constexpr int64_t kForwardTiles = 8;  ///< of keys, before the forward merges results
constexpr int64_t kForwardKeys = kForwardTiles * kColumns;
constexpr int64_t kRowsAtOnce = 8;  ///< rows of scores that stay in a processor's first cache

/// Whether each row of an accumulator is merged at most once, without sinks; see HostBlock::forwardBf16().
bool mergesOnce(std::span<const Rectangle> rectangles, const Passes& passes) {
  if (!passes.accumulated || !passes.once || passes.sinks) return false;
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (const auto& r : rectangles) {
    if (r.columns > kForwardKeys16) return false;
    rows.emplace_back(r.row, r.row + r.rows);
  }
  std::sort(rows.begin(), rows.end());
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].first < rows[i - 1].second) return false;
  }
  return true;
}

}  // namespace

void HostBlock::carve(Arena& arena) {
  scratch_.resize(size(exec_.pool().threads()));
  const auto take = [&](int64_t count) { return static_cast<float*>(arena.take(size(count) * sizeof(float))); };
  const auto sizeOfPacked = [](int64_t k, int64_t n) { return static_cast<int64_t>(packedSize(size(k), size(n))); };
  const bool training = shape_.training;
  for (auto& s : scratch_) {
    s.q = take(kWideRows * shape_.headDim);
    s.k = take(kColumns * shape_.headDim);
    s.v = take(kColumns * shape_.valueDim);
    s.packedKeys = take(kForwardTiles * sizeOfPacked(shape_.headDim, kColumns));
    s.packedValues = take(kForwardTiles * sizeOfPacked(kColumns, shape_.valueDim));
    s.scores = take(kWideRows * kColumns);
    s.out = take(kWideRows * shape_.valueDim);
    s.dOut = training ? take(kWideRows * shape_.valueDim) : nullptr;
    s.gradients = training ? take(kWideRows * kColumns) : nullptr;
    if (bf16Kernels_ != nullptr && shape_.type == seqparBfloat16) carveBf16(arena, s.bf16);
    if (!training) continue;
    s.packedKeyRows = take(kGradientTiles * sizeOfPacked(kColumns, shape_.headDim));
    s.packedQ = take(sizeOfPacked(kWideRows, shape_.headDim));
    s.packedDOut = take(sizeOfPacked(kWideRows, shape_.valueDim));
    s.dk = take(kKeyChunk * shape_.headDim);
    s.dv = take(kKeyChunk * shape_.valueDim);
  }
}

void HostBlock::expect(std::span<const Rectangle> rectangles, int64_t, int64_t, Passes passes) {
  const auto count = static_cast<int64_t>(rectangles.size());
  if (passes.forward) mergedOnce_ = (calls_.forward == 0 || mergedOnce_) && mergesOnce(rectangles, passes);
  if (passes.forward) calls_.forward += count;
  if (passes.backward && shape_.training) calls_.backward += count;
}

std::unique_ptr<Accumulator> HostBlock::accumulate(const Partial& partial, const Tensor& out, const Rows&) {
  const bool once = mergedOnce_ && bf16Kernels_ != nullptr && out.type == seqparBfloat16;
  const bool inPlace = out.data != nullptr && (out.type == seqparFloat32 || once);
  return Block::accumulate({inPlace ? out : partial.out, partial.lse}, {}, {});
}

std::unique_ptr<GradientAccumulator> HostBlock::accumulate(GradientOf which, const Tensor& sum, const Tensor& out) {
  const bool inPlace = out.data != nullptr && out.type == seqparFloat32;
  return Block::accumulate(which, inPlace ? out : sum, {});
}

void HostBlock::forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  exec_.launch([this, in, rectangles, into] {
    auto& pool = exec_.pool();
    const int64_t units = shape_.batch * shape_.kvHeads;
    for (const auto& r : rectangles) {
      const int64_t height = usesBf16(in) ? int64_t{kTileQueries} : rowsOfTile(r, units);
      const int64_t tiles = (r.rows + height - 1) / height;
      const int64_t parts =
          std::clamp<int64_t>(pool.threads() == 1 ? 1 : 4 * int64_t{pool.threads()} / units, 1, tiles);
      pool.each(size(units * parts), [&](size_t task, int thread) {
        const int64_t unit = static_cast<int64_t>(task) / parts, part = static_cast<int64_t>(task) % parts;
        const int64_t begin = part * tiles / parts * height,
                      end = std::min(r.rows, (part + 1) * tiles / parts * height);
        const int64_t b = unit / shape_.kvHeads, kvHead = unit % shape_.kvHeads;
        auto& scratch = scratch_[size(thread)];
        if (usesBf16(in)) {
          forwardBf16(in, r, into, b, kvHead, begin, end - begin, scratch.bf16);
        } else {
          forwardTask(in, r, into, b, kvHead, begin, end - begin, scratch);
        }
      });
    }
  });
}

// Tiles and chunks start at fixed keys, for any number of threads. If several tiles of queries use the keys, they are
// packed for products once.
void HostBlock::forwardTask(const BlockInputs& in, const Rectangle& r, const Partial& into, int64_t b, int64_t kvHead,
                            int64_t firstRow, int64_t rows, Scratch& s) {
  const size_t dim = size(shape_.headDim), width = size(shape_.valueDim), pitch = size(kColumns);
  const auto [firstHead, endHead] = queryHeads(shape_, kvHead);
  const TileRange all = seenByAny(r, firstRow, rows, {0, r.columns});
  const int64_t height = rowsOfTile(r, shape_.batch * shape_.kvHeads);
  const bool shared = (endHead - firstHead) * rows > height;
  float most[kWideRows], sum[kWideRows];
  for (int64_t chunk = all.begin / kForwardKeys * kForwardKeys; chunk < all.end; chunk += kForwardKeys) {
    const TileRange keys{std::max(chunk, all.begin), std::min(chunk + kForwardKeys, all.end)};
    uint32_t packed = 0;  // a bit per tile
    for (int64_t h = firstHead; h < endHead; ++h) {
      for (int64_t row = firstRow; row < firstRow + rows; row += height) {
        const int64_t count = std::min(height, firstRow + rows - row);
        const TileRange seen = seenByAny(r, row, count, keys);
        if (seen.empty()) continue;
        const Matrix q = load(in.q, b, r.row + row, count, h, shape_.scale, s.q);
        std::fill_n(most, count, kNothing);
        std::fill_n(sum, count, 0.0f);
        const int64_t first = seen.begin / kColumns * kColumns;
        for (int64_t column = first; column < seen.end; column += kColumns) {
          const int64_t number = (column - chunk) / kColumns, columns = std::min(kColumns, r.columns - column);
          const TileRange tile{std::max(column, seen.begin), std::min(column + columns, seen.end)};
          const size_t begin = size(tile.begin - column), breadth = size(tile.end - tile.begin);
          float* const packedKeys = s.packedKeys + size(number) * packedSize(dim, pitch);
          float* const packedValues = s.packedValues + size(number) * packedSize(pitch, width);
          const bool ready = (packed >> number & 1) != 0;
          Matrix k{}, v{};
          if (!ready) {
            k = load(in.k, b, r.column + column, columns, kvHead, 1, s.k);
            v = load(in.v, b, r.column + column, columns, kvHead, 1, s.v);
          }
          if (shared && !ready) {
            pack(dim, size(columns), {k.data, k.stride, true}, packedKeys);
            pack(size(columns), width, {v.data, v.stride}, packedValues);
            packed |= 1U << number;
          }
          const Factor queries{q.data, q.stride};
          if (shared) {
            const auto [from, to] = packedColumns(begin, begin + breadth, columns);
            multiplyPacked(size(count), to - from, dim, queries, {packedKeys, dim, 0, from}, false, s.scores + from,
                           pitch);
          } else {
            multiply(size(count), breadth, dim, queries, {k.row(tile.begin - column), k.stride, true}, false,
                     s.scores + begin, pitch);
          }
          // Maxima of several rows first, which the processor overlaps with the exponentials of other rows.
          for (int64_t group = 0; group < count; group += kRowsAtOnce) {
            const int64_t end = std::min(group + kRowsAtOnce, count);
            float largest[kRowsAtOnce];
            for (int64_t i = group; i < end; ++i) {
              float* const scores = s.scores + size(i) * pitch + begin;
              const TileRange mine = seenBy(r, row + i, tile);
              clearOutside(scores, tile, mine);
              if (mine.empty()) continue;
              float* const visible = scores + (mine.begin - tile.begin);
              const size_t length = size(mine.end - mine.begin);
              if (shape_.softcap != 0) rows::cap(visible, length, shape_.softcap);
              largest[i - group] = std::max(most[i], rows::largest(visible, length));
            }
            for (int64_t i = group; i < end; ++i) {
              const TileRange mine = seenBy(r, row + i, tile);
              if (mine.empty()) continue;
              float* const visible = s.scores + size(i) * pitch + begin + (mine.begin - tile.begin);
              const size_t length = size(mine.end - mine.begin);
              const float before = std::exchange(most[i], largest[i - group]);
              if (most[i] == kNothing && !std::isnan(*visible)) {  // scores of -inf only
                std::fill_n(visible, length, 0.0f);
                continue;
              }
              float kept = 1;
              if (before != most[i]) kept = before == kNothing ? 0.0f : std::exp(before - most[i]);
              sum[i] = sum[i] * kept + rows::exponentiate(visible, length, most[i]);
              if (column != first && kept != 1) rows::scale(s.out + size(i) * width, width, kept);
            }
          }
          const Factor weights{s.scores + begin, pitch};
          if (shared) {
            multiplyPacked(size(count), width, breadth, weights, {packedValues, size(columns), begin, 0},
                           column != first, s.out, width);
          } else {
            multiply(size(count), width, breadth, weights, {v.row(tile.begin - column), v.stride}, column != first,
                     s.out, width);
          }
        }
        for (int64_t i = 0; i < count; ++i) {
          if (sum[i] == 0) continue;
          mergeRow(into, b, h, r.row + row + i, most[i] + std::log(sum[i]), s.out + size(i) * width, 1 / sum[i]);
        }
      }
    }
  }
}

void HostBlock::eachRow(int64_t tokens, const std::function<void(int64_t, int64_t, int64_t, int)>& body) {
  constexpr int64_t kStep = 64;
  const int64_t steps = (tokens + kStep - 1) / kStep;
  exec_.pool().each(size(shape_.batch * shape_.heads * steps), [&](size_t task, int thread) {
    const int64_t unit = static_cast<int64_t>(task) / steps, first = static_cast<int64_t>(task) % steps * kStep;
    for (int64_t t = first; t < std::min(first + kStep, tokens); ++t) {
      body(unit / shape_.heads, unit % shape_.heads, t, thread);
    }
  });
}

void HostBlock::merge(const Partial& into, const Partial& from) {
  exec_.launch([this, into, from] {
    const size_t width = size(shape_.valueDim);
    eachRow(into.out.tokens, [&](int64_t b, int64_t h, int64_t t, int thread) {
      const float other = *from.lse.at(b, h, t);
      if (other == kNothing) return;
      float* const lse = into.lse.at(b, h, t);
      const auto weights = mergeWeights(*lse, other);
      auto* const out = reinterpret_cast<float*>(into.out.at(b, t, h));
      const Matrix term = load(from.out, b, t, 1, h, 1, scratch_[size(thread)].out);
      if (*lse == kNothing) {
        std::copy_n(term.data, width, out);
      } else {
        rows::blend(out, weights.a, term.data, weights.b, width);
      }
      *lse = weights.lse;
    });
  });
}

void HostBlock::finish(const Partial& partial, const float* sinks, const Tensor& out, const Rows& lse) {
  exec_.launch([this, partial, sinks, out, lse] {
    const size_t width = size(shape_.valueDim);
    const bool inPlace = out.type == seqparFloat32;
    eachRow(out.tokens, [&](int64_t b, int64_t h, int64_t t, int thread) {
      float sink = kNothing;
      if (sinks != nullptr) sink = sinks[h];
      const auto weights = mergeWeights(*partial.lse.at(b, h, t), sink);
      if (lse.data != nullptr) *lse.at(b, h, t) = weights.lse;
      if (partial.out.at(b, t, h) == out.at(b, t, h) && weights.a == 1) return;
      float* const row = inPlace ? reinterpret_cast<float*>(out.at(b, t, h)) : scratch_[size(thread)].out;
      if (weights.a == 0) {
        std::fill_n(row, width, 0.0f);
      } else {
        rows::scaledCopy(load(partial.out, b, t, 1, h, 1, row).data, width, weights.a, row);
      }
      if (!inPlace) fromFloat(row, out.at(b, t, h), out.type, width);
    });
  });
}

void HostBlock::delta(const Tensor& out, const Tensor& dOut, const Rows& delta) {
  exec_.launch([this, out, dOut, delta] {
    eachRow(out.tokens, [&](int64_t b, int64_t h, int64_t t, int thread) {
      auto& s = scratch_[size(thread)];
      const Matrix o = load(out, b, t, 1, h, 1, s.out), g = load(dOut, b, t, 1, h, 1, s.dOut);
      *delta.at(b, h, t) = rows::dot(o.data, g.data, size(shape_.valueDim));
    });
  });
}

void HostBlock::sinkGradient(const float* sinks, const Rows& lse, const Rows& delta, float* dSinks) {
  exec_.launch([this, sinks, lse, delta, dSinks] {
    exec_.pool().each(size(shape_.heads), [&](size_t h, int) {
      double sum = 0;
      for (int64_t b = 0; b < shape_.batch; ++b) {
        for (int64_t t = 0; t < lse.tokens; ++t) {
          const auto head = static_cast<int64_t>(h);
          const float total = *lse.at(b, head, t);
          if (total != kNothing) sum -= std::exp(static_cast<double>(sinks[h]) - total) * *delta.at(b, head, t);
        }
      }
      dSinks[h] = static_cast<float>(sum);
    });
  });
}

}  // namespace seqpar::attn
