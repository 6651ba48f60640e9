#include "attn/linear/host/vector.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "base/sgemm.h"
#include "base/vector_loops.h"

namespace seqpar::attn::linear {
namespace {

/// run *= decay, row = source * run.
inline void advanceRow(const float* decay, const float* source, size_t count, float* run, float* row) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) {
    run[i] *= decay[i];
    row[i] = source[i] * run[i];
  }
}

inline void scaledRow(float factor, const float* from, size_t count, float* to) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

/// exp(x) = 2^n exp(r) with n the nearest integer to x / ln 2, so that |r| <= ln(2) / 2, and a polynomial for exp(r).
/// 2^n is applied in two halves, so that results may become subnormal.
[[gnu::always_inline]] inline float exponential(float x) {
  constexpr float kLowest = -105.0f;       // below it, exp rounds to 0
  constexpr float kHighest = 128.0f;       // above it, exp is infinite
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  constexpr uint32_t kRounderBits = std::bit_cast<uint32_t>(kRounder);
  x = x < kLowest ? kLowest : x;
  x = x > kHighest ? kHighest : x;
  const float shifted = x * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float p = exponentialNearZero(r);
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - kRounderBits + 256;
  const uint32_t half = exponent / 2;
  const float scaleA = std::bit_cast<float>((half - 1) << 23);
  const float scaleB = std::bit_cast<float>((exponent - half - 1) << 23);
  return p * scaleA * scaleB;
}

}  // namespace

SEQPAR_VECTOR_CLONES void exponentiate(const float* logarithms, size_t count, float* factors) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) factors[i] = exponential(logarithms[i]);
}

SEQPAR_VECTOR_CLONES void exponentiateRows(const float* logarithms, size_t stride, size_t rows, size_t columns,
                                           float* factors) {
  for (size_t t = 0; t < rows; ++t) {
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) factors[t * columns + i] = exponential(logarithms[t * stride + i]);
  }
}

// By exponents: a sum of floats would wait for each addition.
SEQPAR_VECTOR_CLONES bool allFinite(const float* x, size_t count) {
  constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  uint32_t most = 0;
#pragma omp simd reduction(max : most)
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & kMagnitude;
    most = magnitude > most ? magnitude : most;
  }
  return most < kInfinity;
}

SEQPAR_VECTOR_CLONES void scaleTo(float factor, const float* from, size_t count, float* to) {
  scaledRow(factor, from, count, to);
}

SEQPAR_VECTOR_CLONES void scale(float factor, size_t count, float* x) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) x[i] *= factor;
}

SEQPAR_VECTOR_CLONES void add(const float* y, size_t count, float* x) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) x[i] += y[i];
}

SEQPAR_VECTOR_CLONES void multiplyAdd(const float* a, const float* b, size_t count, float* sum) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) sum[i] += a[i] * b[i];
}

SEQPAR_VECTOR_CLONES void decayFromStart(const float* decays, size_t rows, size_t width, size_t columns,
                                         const float* from, float* to, float* product) {
  for (size_t i = 0; i < width; ++i) product[i] = 1.0f;
  for (size_t t = 0; t < rows; ++t) {
    if (width == 1) {
      *product *= decays[t];
      scaledRow(*product, from + t * columns, columns, to + t * columns);
    } else {
      advanceRow(decays + t * columns, from + t * columns, columns, product, to + t * columns);
    }
  }
}

SEQPAR_VECTOR_CLONES void decayToEnd(const float* decays, size_t rows, size_t width, size_t columns, const float* from,
                                     float* to, float* product) {
  for (size_t i = 0; i < width; ++i) product[i] = 1.0f;
  for (size_t t = rows; t-- > 0;) {
    const float* const source = from + t * columns;
    float* const row = to + t * columns;
    if (width == 1) {
      scaledRow(*product, source, columns, row);
      *product *= decays[t];
    } else {
      const float* const decay = decays + t * columns;
#pragma omp simd
      for (size_t i = 0; i < columns; ++i) {
        row[i] = source[i] * product[i];
        product[i] *= decay[i];
      }
    }
  }
}

SEQPAR_VECTOR_CLONES void forgetRows(const float* factor, size_t rows, size_t columns, float* x) {
  for (size_t t = 0; t < rows; ++t) {
    float* const row = x + t * columns;
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) {
      const float value = row[i] * factor[i];
      row[i] = factor[i] == 0.0f ? 0.0f : value;
    }
  }
}

SEQPAR_VECTOR_CLONES void forgetRow(float factor, size_t columns, float* x) {
  if (factor == 0.0f) {
    for (size_t i = 0; i < columns; ++i) x[i] = 0.0f;
  } else {
    scaledRow(factor, x, columns, x);
  }
}

SEQPAR_VECTOR_CLONES void multiplyEach(const float* factor, size_t rows, size_t columns, float* x) {
  for (size_t t = 0; t < rows; ++t) {
    float* const row = x + t * columns;
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) row[i] *= factor[i];
  }
}

SEQPAR_VECTOR_CLONES void decayState(const float* factor, size_t width, size_t rows, size_t columns, const float* from,
                                     float* to) {
  for (size_t d = 0; d < rows; ++d) {
    const float f = factor[width == 1 ? 0 : d];
    if (f == 0.0f) {
      for (size_t i = 0; i < columns; ++i) to[d * columns + i] = 0.0f;
    } else {
      scaledRow(f, from + d * columns, columns, to + d * columns);
    }
  }
}

SEQPAR_VECTOR_CLONES void addDecayedState(const float* factor, size_t width, size_t rows, size_t columns,
                                          const float* base, const float* from, float* to) {
  for (size_t d = 0; d < rows; ++d) {
    const float f = factor[width == 1 ? 0 : d];
    const float* const b = base + d * columns;
    const float* const x = from + d * columns;
    float* const row = to + d * columns;
    if (f == 0.0f) {
      for (size_t i = 0; i < columns; ++i) row[i] = b[i];
    } else {
#pragma omp simd
      for (size_t i = 0; i < columns; ++i) row[i] = b[i] + f * x[i];
    }
  }
}

void multiplyForgetting(size_t rows, size_t columns, size_t inner, Factor a, Factor b, bool accumulate, float* c,
                        size_t strideC) {
  const auto finite = [](const Factor& x, size_t height, size_t width) {
    if (x.transposed) std::swap(height, width);
    if (x.stride == width) return allFinite(x.data, height * width);
    for (size_t i = 0; i < height; ++i) {
      if (!allFinite(x.data + i * x.stride, width)) return false;
    }
    return true;
  };
  if (finite(a, rows, inner) && finite(b, inner, columns)) {
    return multiply(rows, columns, inner, a, b, accumulate, c, strideC);
  }
  const auto at = [](const Factor& x, size_t row, size_t column) {
    return x.transposed ? x.data[column * x.stride + row] : x.data[row * x.stride + column];
  };
  for (size_t t = 0; t < rows; ++t) {
    for (size_t i = 0; i < columns; ++i) {
      float sum = accumulate ? c[t * strideC + i] : 0.0f;
      for (size_t d = 0; d < inner; ++d) {
        const float x = at(a, t, d), y = at(b, d, i);
        if (x != 0.0f && y != 0.0f) sum += x * y;
      }
      c[t * strideC + i] = sum;
    }
  }
}

SEQPAR_VECTOR_CLONES void decayMatrix(const float* decays, size_t rows, float* m, size_t stride) {
  for (size_t t = 0; t < rows; ++t) {
    if (t > 0) scaledRow(decays[t], m + (t - 1) * stride, t, m + t * stride);
    m[t * stride + t] = 1.0f;
    for (size_t j = t + 1; j < rows; ++j) m[t * stride + j] = 0.0f;
  }
}

SEQPAR_VECTOR_CLONES void forgetEach(const float* y, size_t rows, size_t columns, size_t stride, float* x) {
  for (size_t t = 0; t < rows; ++t) {
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) {
      const float value = x[t * stride + i] * y[t * stride + i];
      x[t * stride + i] = y[t * stride + i] == 0.0f ? 0.0f : value;
    }
  }
}

SEQPAR_VECTOR_CLONES void decayedRowSums(const float* factor, size_t width, const float* x, const float* y, size_t rows,
                                         size_t columns, float* sums) {
  for (size_t d = 0; d < rows; ++d) {
    const float f = factor[width == 1 ? 0 : d];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < columns; ++i) sum += x[d * columns + i] * y[d * columns + i];
    sums[d] = f == 0.0f ? 0.0f : f * sum;
  }
}

SEQPAR_VECTOR_CLONES void addColumnSums(const float* x, const float* y, size_t rows, size_t columns, float* sums) {
  for (size_t t = 0; t < rows; ++t) {
    const float* const a = x + t * columns;
    const float* const b = y + t * columns;
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) {
      const float value = a[i] * b[i];
      sums[i] += a[i] == 0.0f ? 0.0f : value;
    }
  }
}

SEQPAR_VECTOR_CLONES void gateGradients(const float* decays, const float* q, const float* dq, const float* k,
                                        const float* dk, size_t rows, size_t columns, float* run, float* gradient) {
  for (size_t t = rows; t-- > 0;) {
    const size_t row = t * columns;
#pragma omp simd
    for (size_t i = 0; i < columns; ++i) {
      const float value = run[i] + (q[row + i] * dq[row + i] - k[row + i] * dk[row + i]);
      run[i] = decays[row + i] == 0.0f ? 0.0f : value;
      gradient[row + i] = run[i];
    }
  }
}

// Both branches use exponents of at most 0.
SEQPAR_VECTOR_CLONES static void sigmoid(const float* z, size_t count, float* to) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] = z[i] < 0 ? z[i] : -z[i];
  exponentiate(to, count, to);
#pragma omp simd
  for (size_t i = 0; i < count; ++i) {
    const float inverse = 1.0f / (1.0f + to[i]), other = to[i] * inverse;
    to[i] = z[i] < 0 ? other : inverse;
  }
}

SEQPAR_VECTOR_CLONES void silu(float* z, size_t count, float* scratch) {
  sigmoid(z, count, scratch);
#pragma omp simd
  for (size_t i = 0; i < count; ++i) z[i] *= scratch[i];
}

SEQPAR_VECTOR_CLONES void multiplySiluSlope(const float* z, size_t count, float* dz, float* scratch) {
  sigmoid(z, count, scratch);
#pragma omp simd
  for (size_t i = 0; i < count; ++i) dz[i] *= scratch[i] * (1.0f + z[i] * (1.0f - scratch[i]));
}

SEQPAR_VECTOR_CLONES float dot(const float* x, const float* y, size_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace seqpar::attn::linear
