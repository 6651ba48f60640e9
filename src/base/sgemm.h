// Matrix products in fp32, row-major, on the calling thread only. An element of c gets the same bits in every split of
// a larger product.
#pragma once

#include <cstddef>

namespace seqpar {

/// A matrix operand: element (row, column) is data[row * stride + column].
struct Factor {
  const float* data = nullptr;
  size_t stride = 0;
  bool transposed = false;  ///< use the transpose
};

/// c = a b, or c += a b: a (after transposition) is m x k and b is k x n. c overlaps neither a nor b.
void multiply(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC);

}  // namespace seqpar
