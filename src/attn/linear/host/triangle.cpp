#include "attn/linear/host/triangle.h"

#include <algorithm>

#include "attn/linear/host/vector.h"

namespace seqpar::attn::linear {
namespace {

template <class Multiply>
void eachBlock(size_t rows, Factor l, Factor b, float* c, size_t strideC, Multiply multiplyBlock) {
  for (size_t first = 0; first < rows; first += kTriangle) {
    const size_t count = std::min(kTriangle, rows - first), end = first + count;
    // Row i of l has elements up to i; row i of its transpose has elements from i on.
    const size_t from = l.transposed ? first : 0, inner = l.transposed ? rows - first : end;
    const Factor part{l.transposed ? l.data + from * l.stride + first : l.data + first * l.stride, l.stride,
                      l.transposed};
    const Factor values{b.transposed ? b.data + from : b.data + from * b.stride, b.stride, b.transposed};
    multiplyBlock(count, inner, part, values, c + first * strideC);
  }
}

}  // namespace

void multiplyToLower(size_t rows, size_t inner, Factor a, Factor b, float* c, size_t strideC) {
  for (size_t first = 0; first < rows; first += kTriangle) {
    const size_t count = std::min(kTriangle, rows - first);
    const Factor part{a.transposed ? a.data + first : a.data + first * a.stride, a.stride, a.transposed};
    multiply(count, first + count, inner, part, b, false, c + first * strideC, strideC);
  }
}

void multiplyLower(size_t rows, size_t columns, Factor l, Factor b, bool accumulate, float* c, size_t strideC) {
  eachBlock(rows, l, b, c, strideC, [&](size_t count, size_t inner, Factor part, Factor values, float* to) {
    multiply(count, columns, inner, part, values, accumulate, to, strideC);
  });
}

void multiplyLowerPacked(size_t rows, size_t columns, Factor l, Packed b, float* c, size_t strideC) {
  for (size_t first = 0; first < rows; first += kTriangle) {
    const size_t count = std::min(kTriangle, rows - first);
    multiplyPacked(count, columns, first + count, {l.data + first * l.stride, l.stride}, b, false, c + first * strideC,
                   strideC);
  }
}

void multiplyLowerForgetting(size_t rows, size_t columns, Factor l, Factor b, bool accumulate, float* c,
                             size_t strideC) {
  eachBlock(rows, l, b, c, strideC, [&](size_t count, size_t inner, Factor part, Factor values, float* to) {
    multiplyForgetting(count, columns, inner, part, values, accumulate, to, strideC);
  });
}

}  // namespace seqpar::attn::linear
