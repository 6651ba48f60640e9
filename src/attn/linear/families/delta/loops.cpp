#include "attn/linear/families/delta/loops.h"

#include <algorithm>
#include <cmath>

#include "attn/linear/host/segments.h"
#include "attn/linear/host/vector.h"
#include "base/vector_loops.h"

namespace seqpar::attn::linear {
namespace {

constexpr size_t kBlock = 16;  // rows that substitution solves row by row
constexpr float kSmallest = 1e-6f;

/// x[i] += factor y[i].
inline void addScaled(float factor, const float* y, size_t count, float* x) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) x[i] += factor * y[i];
}

using Product = decltype(multiply);

Product* productFor(const float* x, size_t count) {
  return allFinite(x, count) ? &multiply : &multiplyForgetting;
}

SEQPAR_VECTOR_CLONES void solveBlock(const float* n, size_t rows, size_t columns, float* x) {
  for (size_t i = 1; i < rows; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const float factor = n[i * kChunk + j];
      if (factor != 0.0f) addScaled(factor, x + j * columns, columns, x + i * columns);
    }
  }
}

SEQPAR_VECTOR_CLONES void solveBlockTransposed(const float* n, size_t rows, size_t columns, float* x) {
  for (size_t j = rows; j-- > 0;) {
    for (size_t i = j + 1; i < rows; ++i) {
      const float factor = n[i * kChunk + j];
      if (factor != 0.0f) addScaled(factor, x + i * columns, columns, x + j * columns);
    }
  }
}

}  // namespace

SEQPAR_VECTOR_CLONES void normalizeRows(size_t rows, size_t columns, float* x, float* inverse) {
  for (size_t t = 0; t < rows; ++t) {
    float* const row = x + t * columns;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < columns; ++i) sum += row[i] * row[i];
    inverse[t] = 1.0f / std::sqrt(sum + kSmallest);
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) row[i] *= inverse[t];
  }
}

SEQPAR_VECTOR_CLONES void normalizedGradients(size_t rows, size_t columns, const float* y, float scaleOfY,
                                              const float* inverse, float factor, float* dx) {
  const float ofY = 1.0f / (scaleOfY * scaleOfY);
  for (size_t t = 0; t < rows; ++t) {
    const float* const unit = y + t * columns;
    float* const row = dx + t * columns;
    float along = 0;
#pragma omp simd reduction(+ : along)
    for (size_t i = 0; i < columns; ++i) along += unit[i] * row[i];
    along *= ofY;
    const float scale = factor * inverse[t];
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) row[i] = scale * (row[i] - along * unit[i]);
  }
}

SEQPAR_VECTOR_CLONES void subtractFrom(const float* v, size_t rows, size_t dv, size_t columns, float* y) {
  for (size_t t = 0; t < rows; ++t) {
    const float* const value = v + t * dv;
    float* const row = y + t * columns;
#pragma omp simd
    for (size_t i = 0; i < dv; ++i) row[i] = value[i] - row[i];
#pragma omp simd
    for (size_t i = dv; i < columns; ++i) row[i] = -row[i];
  }
}

SEQPAR_VECTOR_CLONES void scaleRows(const float* factor, size_t rows, size_t columns, const float* from, float* to) {
  for (size_t t = 0; t < rows; ++t) {
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) to[t * columns + i] = factor[t] * from[t * columns + i];
  }
}

SEQPAR_VECTOR_CLONES void negateScaledRows(const float* factor, size_t rows, size_t columns, const float* from,
                                           float* to) {
  for (size_t t = 0; t < rows; ++t) {
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) to[t * columns + i] = -factor[t] * from[t * columns + i];
  }
}

SEQPAR_VECTOR_CLONES void negateScaledLower(const float* factor, size_t rows, size_t stride, const float* m,
                                            float* lower) {
  for (size_t t = 0; t < rows; ++t) {
#pragma omp simd
    for (size_t i = 0; i < t; ++i) lower[t * stride + i] = -factor[t] * m[t * stride + i];
    for (size_t i = t; i < rows; ++i) lower[t * stride + i] = 0.0f;
  }
}

SEQPAR_VECTOR_CLONES void rowDots(const float* x, const float* y, size_t rows, size_t columns, size_t stride,
                                  float* sums) {
  for (size_t t = 0; t < rows; ++t) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < columns; ++i) sum += x[t * stride + i] * y[t * stride + i];
    sums[t] = sum;
  }
}

void solveLower(const float* n, size_t rows, size_t columns, float* x) {
  Product* const product = productFor(x, rows * columns);
  for (size_t begin = 0; begin < rows; begin += kBlock) {
    const size_t count = std::min(kBlock, rows - begin);
    float* const block = x + begin * columns;
    if (begin > 0) product(count, columns, begin, {n + begin * kChunk, kChunk}, {x, columns}, true, block, columns);
    solveBlock(n + begin * kChunk + begin, count, columns, block);
  }
}

void solveLowerTransposed(const float* n, size_t rows, size_t columns, float* x) {
  Product* const product = productFor(x, rows * columns);
  for (size_t begin = (rows - 1) / kBlock * kBlock;; begin -= kBlock) {
    const size_t count = std::min(kBlock, rows - begin), behind = begin + count;
    float* const block = x + begin * columns;
    if (behind < rows) {
      product(count, columns, rows - behind, {n + behind * kChunk + begin, kChunk, true},
              {x + behind * columns, columns}, true, block, columns);
    }
    solveBlockTransposed(n + begin * kChunk + begin, count, columns, block);
    if (begin == 0) break;
  }
}

}  // namespace seqpar::attn::linear
