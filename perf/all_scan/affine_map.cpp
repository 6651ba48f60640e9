#include "affine_map.h"

#include <algorithm>
#include <vector>

// Vectorized for the widest instructions of the machine, so that the peers are compared fairly.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SEQPAR_PERF_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SEQPAR_PERF_WIDE
#endif

namespace seqpar::perf {
namespace {

SEQPAR_PERF_WIDE void scaleAdd(float a, const float* x, const float* s, float* out, size_t count) {
#pragma omp simd
  for (size_t j = 0; j < count; ++j) out[j] = a * x[j] + s[j];
}

/// out += A x for row-major matrices, A of n x n (or its transpose), x of n x columns.
void multiplyAdd(const float* a, bool transposed, const float* x, float* out, size_t n, size_t columns) {
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < n; ++k) {
      const float factor = transposed ? a[k * n + i] : a[i * n + k];
      scaleAdd(factor, x + k * columns, out + i * columns, out + i * columns, columns);
    }
  }
}

float rowFactor(const AffineMap& map, const float* a, size_t row) {
  if (map.op == seqparScanSum) return 1.0f;
  return map.op == seqparScanScalar ? a[row / map.shape.dk] : a[row];
}

}  // namespace

size_t AffineMap::coefficients() const {
  switch (op) {
    case seqparScanSum:
      return 0;
    case seqparScanScalar:
      return shape.heads;
    case seqparScanDiag:
      return shape.rows();
    case seqparScanMatrix:
      break;
  }
  return shape.rows() * shape.dk;
}

void AffineMap::apply(const float* a, const float* s, const float* x, float* out, size_t begin, size_t end) const {
  const size_t piece = unitElements();
  if (x == nullptr) {
    if (s != out) std::copy(s + begin * piece, s + end * piece, out + begin * piece);
    return;
  }
  for (size_t unit = begin; unit < end; ++unit) {
    const size_t at = unit * piece;
    if (op == seqparScanMatrix) {
      if (s != out) std::copy(s + at, s + at + piece, out + at);
      multiplyAdd(a + unit * shape.dk * shape.dk, transposed, x + at, out + at, shape.dk, shape.dv);
    } else {
      scaleAdd(rowFactor(*this, a, unit), x + at, s + at, out + at, piece);
    }
  }
}

void AffineMap::compose(const float* earlierA, const float* earlierS, float* laterA, float* laterS) const {
  apply(laterA, laterS, earlierS, laterS, 0, units());
  if (op != seqparScanMatrix) {
    for (size_t i = 0; i < coefficients(); ++i) laterA[i] *= earlierA[i];
    return;
  }
  // A^T of a composition is the product in reverse order.
  const size_t square = shape.dk * shape.dk;
  std::vector<float> product(square);
  for (size_t head = 0; head < shape.heads; ++head) {
    std::fill(product.begin(), product.end(), 0.0f);
    float* const later = laterA + head * square;
    const float* const earlier = earlierA + head * square;
    multiplyAdd(transposed ? earlier : later, false, transposed ? later : earlier, product.data(), shape.dk, shape.dk);
    std::copy(product.begin(), product.end(), later);
  }
}

}  // namespace seqpar::perf
