#include "scan/affine/forgetting_product.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace seqpar {
namespace {

/// Compares bits as integers, which compilers vectorize in any order.
bool allFinite(const float* numbers, size_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, numbers + i, sizeof(bits));
    found |= static_cast<uint32_t>((bits & kExponent) == kExponent);
  }
  return found == 0;
}

}  // namespace

// An ordinary product would turn 0 times NaN into NaN. Rows of b that are not finite are excluded from it and added
// afterwards, if their factors are not 0.
void multiplyForgetting(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC) {
  std::vector<size_t> wild;
  for (size_t row = 0; row < k; ++row) {
    if (!allFinite(b.data + row * b.stride, n)) wild.push_back(row);
  }
  if (wild.empty()) {
    multiply(m, n, k, a, b, accumulate, c, strideC);
    return;
  }
  std::vector<float> finite(k * n);
  for (size_t row = 0; row < k; ++row) std::copy_n(b.data + row * b.stride, n, finite.data() + row * n);
  for (const size_t row : wild) std::fill_n(finite.data() + row * n, n, 0.0F);
  multiply(m, n, k, a, {finite.data(), n}, accumulate, c, strideC);
  for (const size_t row : wild) {
    for (size_t i = 0; i < m; ++i) {
      const float factor = a.transposed ? a.data[row * a.stride + i] : a.data[i * a.stride + row];
      if (factor == 0.0F) continue;
      for (size_t j = 0; j < n; ++j) c[i * strideC + j] += factor * b.data[row * b.stride + j];
    }
  }
}

}  // namespace seqpar
