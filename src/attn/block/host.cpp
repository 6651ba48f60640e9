#include "attn/block/host.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attn/block/host_rows.h"
#include "attn/block/host_tiles.h"
#include "base/convert.h"
#include "base/sgemm.h"
#include "kernels/attn/softmax/merge.h"

namespace seqpar::attn {
namespace {

constexpr int64_t kColumns = 256;  ///< keys of a tile
constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Rows of fp32 elements.
struct Matrix {
  const float* data;
  size_t stride;
  const float* row(int64_t i) const { return data + size(i) * stride; }
};

/// `count` tokens of one head in fp32: in place if they are fp32 and `factor` is 1, otherwise a copy in `buffer`.
Matrix load(const Tensor& tensor, int64_t b, int64_t first, int64_t count, int64_t head, float factor, float* buffer) {
  if (tensor.type == seqparFloat32 && factor == 1) {
    // With one token the stride is unused and may have any value.
    const int64_t stride = std::max(tensor.tokenStride, tensor.dim);
    return {reinterpret_cast<const float*>(tensor.at(b, first, head)), size(stride)};
  }
  const size_t dim = size(tensor.dim);
  for (int64_t t = 0; t < count; ++t) {
    float* const row = buffer + size(t) * dim;
    if (tensor.type == seqparFloat32) {
      rows::scaledCopy(reinterpret_cast<const float*>(tensor.at(b, first + t, head)), dim, factor, row);
    } else {
      toFloat(tensor.at(b, first + t, head), tensor.type, row, dim);
      if (factor != 1) rows::scale(row, dim, factor);
    }
  }
  return {buffer, dim};
}

/// Zeros the elements of a tile row outside `seen`; both are relative to the same column.
void clearOutside(float* row, TileRange tile, TileRange seen) {
  if (seen.empty()) return void(std::fill_n(row, tile.end - tile.begin, 0.0f));
  std::fill(row, row + (seen.begin - tile.begin), 0.0f);
  std::fill(row + (seen.end - tile.begin), row + (tile.end - tile.begin), 0.0f);
}

}  // namespace

void HostBlock::carve(Arena& arena) {
  scratch_.resize(size(exec_.pool().threads()));
  const auto take = [&](int64_t count) { return static_cast<float*>(arena.take(size(count) * sizeof(float))); };
  const bool training = shape_.training;
  for (auto& s : scratch_) {
    s.q = take(kWideRows * shape_.headDim);
    s.k = take(kKeyChunk * shape_.headDim);
    s.v = take(kKeyChunk * shape_.valueDim);
    s.scores = take(kWideRows * kColumns);
    s.out = take(kWideRows * shape_.valueDim);
    s.dOut = training ? take(kWideRows * shape_.valueDim) : nullptr;
    s.gradients = training ? take(kWideRows * kColumns) : nullptr;
    if (bf16Kernels_ != nullptr && shape_.type == seqparBfloat16) carveBf16(arena, s.bf16);
    s.scaled = training ? take(kWideRows * shape_.headDim) : nullptr;
  }
}

void HostBlock::forward(const BlockInputs& in, std::span<const Rectangle> rectangles, const Partial& into) {
  if (rectangles.empty() || shape_.batch * shape_.heads == 0) return;
  exec_.launch([this, in, rectangles, into] {
    auto& pool = exec_.pool();
    const int64_t units = shape_.batch * shape_.kvHeads;
    for (const auto& r : rectangles) {
      const int64_t height = rowsOfTile(r, units), tiles = (r.rows + height - 1) / height;
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

void HostBlock::forwardTask(const BlockInputs& in, const Rectangle& r, const Partial& into, int64_t b, int64_t kvHead,
                            int64_t firstRow, int64_t rows, Scratch& s) {
  const size_t dim = size(shape_.headDim), width = size(shape_.valueDim);
  const auto [firstHead, endHead] = queryHeads(shape_, kvHead);
  const int64_t together = in.k.type == seqparFloat32 && in.v.type == seqparFloat32 ? kKeysInPlace : kKeyChunk;
  const TileRange all = seenByAny(r, firstRow, rows, {0, r.columns});
  float most[kWideRows], sum[kWideRows];
  const int64_t height = rowsOfTile(r, shape_.batch * shape_.kvHeads);
  for (int64_t chunk = all.begin; chunk < all.end; chunk += together) {
    const int64_t columns = std::min(together, all.end - chunk);
    const Matrix k = load(in.k, b, r.column + chunk, columns, kvHead, 1, s.k);
    const Matrix v = load(in.v, b, r.column + chunk, columns, kvHead, 1, s.v);
    for (int64_t h = firstHead; h < endHead; ++h) {
      for (int64_t row = firstRow; row < firstRow + rows; row += height) {
        const int64_t count = std::min(height, firstRow + rows - row);
        const TileRange seen = seenByAny(r, row, count, {chunk, chunk + columns});
        if (seen.empty()) continue;
        const Matrix q = load(in.q, b, r.row + row, count, h, shape_.scale, s.q);
        std::fill_n(most, count, kNothing);
        std::fill_n(sum, count, 0.0f);
        for (int64_t column = seen.begin; column < seen.end; column += kColumns) {
          const TileRange tile{column, std::min(column + kColumns, seen.end)};
          const size_t breadth = size(tile.end - tile.begin);
          multiply(size(count), breadth, dim, {q.data, q.stride}, {k.row(column - chunk), k.stride, true}, false,
                   s.scores, size(kColumns));
          for (int64_t i = 0; i < count; ++i) {
            float* const scores = s.scores + i * kColumns;
            const TileRange mine = seenBy(r, row + i, tile);
            clearOutside(scores, tile, mine);
            if (mine.empty()) continue;
            float* const first = scores + (mine.begin - tile.begin);
            const size_t length = size(mine.end - mine.begin);
            if (shape_.softcap != 0) rows::cap(first, length, shape_.softcap);
            const float before = most[i];
            most[i] = std::max(before, rows::largest(first, length));
            if (most[i] == kNothing && !std::isnan(*first)) {  // scores of -inf only
              std::fill_n(first, length, 0.0f);
              continue;
            }
            const float kept = before == kNothing ? 0.0f : std::exp(before - most[i]);
            sum[i] = sum[i] * kept + rows::exponentiate(first, length, most[i]);
            if (column != seen.begin && kept != 1) rows::scale(s.out + size(i) * width, width, kept);
          }
          multiply(size(count), width, breadth, {s.scores, size(kColumns)}, {v.row(column - chunk), v.stride},
                   column != seen.begin, s.out, width);
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
    eachRow(out.tokens, [&](int64_t b, int64_t h, int64_t t, int thread) {
      float sink = kNothing;
      if (sinks != nullptr) sink = sinks[h];
      const auto weights = mergeWeights(*partial.lse.at(b, h, t), sink);
      float* const row = scratch_[size(thread)].out;
      if (weights.a == 0) {
        std::fill_n(row, width, 0.0f);
      } else {
        rows::scaledCopy(reinterpret_cast<const float*>(partial.out.at(b, t, h)), width, weights.a, row);
      }
      fromFloat(row, out.at(b, t, h), out.type, width);
      if (lse.data != nullptr) *lse.at(b, h, t) = weights.lse;
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
  const int64_t height = rowsOfTile(r, units);
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

void HostBlock::backwardTask(const BlockGradientInputs& in, const Rectangle& r, const BlockGradients& into, int64_t b,
                             int64_t kvHead, const BackwardPart& part, Scratch& s) {
  if (usesBf16(in)) return backwardBf16(in, r, into, b, kvHead, part, s.bf16);
  const size_t dim = size(shape_.headDim), width = size(shape_.valueDim);
  const auto [firstHead, endHead] = queryHeads(shape_, kvHead);
  const int64_t height = rowsOfTile(r, shape_.batch * shape_.kvHeads);
  const auto sums = [&](const Tensor& tensor, int64_t token, int64_t head) {
    return reinterpret_cast<float*>(tensor.at(b, token, head));
  };
  for (int64_t chunk = part.firstColumn; chunk < part.endColumn; chunk += kKeyChunk) {
    const int64_t columns = std::min(kKeyChunk, part.endColumn - chunk);
    const Matrix k = load(in.k, b, r.column + chunk, columns, kvHead, shape_.scale, s.k);  // scaled
    const Matrix v = load(in.v, b, r.column + chunk, columns, kvHead, 1, s.v);
    for (int64_t h = firstHead; h < endHead; ++h) {
      for (int64_t row = part.firstRow; row < part.endRow; row += height) {
        const int64_t count = std::min(height, part.endRow - row), token = r.row + row;
        const TileRange seen = seenByAny(r, row, count, {chunk, chunk + columns});
        if (seen.empty()) continue;
        const Matrix q = load(in.q, b, token, count, h, 1, s.q);
        const Matrix scaled = load(in.q, b, token, count, h, shape_.scale, s.scaled);
        const Matrix dOut = load(in.dOut, b, token, count, h, 1, s.dOut);
        for (int64_t column = seen.begin; column < seen.end; column += kColumns) {
          const TileRange tile{column, std::min(column + kColumns, seen.end)};
          const size_t breadth = size(tile.end - tile.begin), stride = size(kColumns);
          multiply(size(count), breadth, dim, {q.data, q.stride}, {k.row(column - chunk), k.stride, true}, false,
                   s.scores, stride);
          multiply(size(count), breadth, width, {dOut.data, dOut.stride}, {v.row(column - chunk), v.stride, true},
                   false, s.gradients, stride);
          for (int64_t i = 0; i < count; ++i) {
            float* const scores = s.scores + i * kColumns;
            float* const gradients = s.gradients + i * kColumns;
            const float lse = *in.lse.at(b, h, token + i), delta = *in.delta.at(b, h, token + i);
            TileRange mine = seenBy(r, row + i, tile);
            if (lse == kNothing) mine.end = mine.begin;  // scores of -inf only: no key counts
            clearOutside(scores, tile, mine);
            clearOutside(gradients, tile, mine);
            if (mine.empty()) continue;
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
          const int64_t key = r.column + column;
          if (part.keys) {
            multiply(breadth, width, size(count), {s.scores, stride, true}, {dOut.data, dOut.stride}, true,
                     sums(into.dv, key, kvHead), size(into.dv.tokenStride));
            multiply(breadth, dim, size(count), {s.gradients, stride, true}, {scaled.data, scaled.stride}, true,
                     sums(into.dk, key, kvHead), size(into.dk.tokenStride));
          }
          if (!part.queries) continue;
          multiply(size(count), dim, breadth, {s.gradients, stride}, {k.row(column - chunk), k.stride}, true,
                   sums(into.dq, token, h), size(into.dq.tokenStride));
        }
      }
    }
  }
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
