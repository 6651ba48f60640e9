// Matrix products in fp32, row-major, on the calling thread only. An element of c has the same bits in whichever part
// of a larger product it is computed.
#pragma once

#include <cstddef>

namespace seqpar {

/// A factor of a product, in memory: element (row, column) is data[row * stride + column].
struct Factor {
  const float* data = nullptr;
  size_t stride = 0;
  bool transposed = false;  ///< use its transpose
};

/// c = a b, or c += a b: a (after its transposition) is m x k and b is k x n. c overlaps neither.
void multiply(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC);

}  // namespace seqpar
