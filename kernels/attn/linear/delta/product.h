// Products of fp32 matrices by a CTA on tensor cores, in TF32 or, for fp32 tensors, in three TF32 products.
//
// Roles: all warps; each takes every kWarps-th tile of 16 x 16 and reads both operands where they are. Overlap: none.
#pragma once

#include "kernels/arch/mma.h"
#include "kernels/attn/linear/delta/task.h"

namespace seqpar::attn::delta {

/// A factor of 0 forgets, even NaN and infinity.
SEQPAR_DEVICE float forgetting(float factor, float x) {
  return factor == 0 ? 0 : factor * x;
}

/// Elements at data[row * rowStride + column * columnStride], times factor[row] unless it is NULL.
struct Matrix {
  const float* data;
  int rowStride, columnStride;
  const float* factor = nullptr;
  SEQPAR_DEVICE float at(int row, int column) const {
    const float x = data[row * rowStride + column * columnStride];
    return factor == nullptr ? x : factor[row] * x;
  }
  SEQPAR_DEVICE Matrix from(int row, int column) const {
    return {data + row * rowStride + column * columnStride, rowStride, columnStride,
            factor == nullptr ? nullptr : factor + row};
  }
};
/// Dense rows, and the transpose of such a matrix.
SEQPAR_DEVICE Matrix rowsOf(const float* data, int stride) {
  return {data, stride, 1};
}
SEQPAR_DEVICE Matrix transposeOf(const float* data, int stride) {
  return {data, 1, stride};
}

/// a b with `terms` terms, a multiple of 16.
struct Factors {
  Matrix a, b;
  int terms;
};

SEQPAR_DEVICE void multiplyTile(float (&c)[2][4], const Factors& f, int row, int column, bool exact) {
  const int lane = ptx::thread() % 32, g = lane / 4, p = lane % 4;
  for (int k = 0; k < f.terms; k += 16) {
    float a[2][4], b[2][2][2];
    SEQPAR_UNROLL
    for (int s = 0; s < 2; ++s) {
      const int term = k + 8 * s + p;
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) a[s][i] = f.a.at(row + g + 8 * (i % 2), term + 4 * (i / 2));
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) b[s][i / 2][i % 2] = f.b.at(term + 4 * (i % 2), column + 8 * (i / 2) + g);
    }
    SEQPAR_UNROLL
    for (int s = 0; s < 2; ++s) {
      uint32_t high[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) high[i] = ptx::roundToTf32(a[s][i]);
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        const uint32_t b0 = ptx::roundToTf32(b[s][n][0]), b1 = ptx::roundToTf32(b[s][n][1]);
        if (exact) {
          uint32_t low[4];
          SEQPAR_UNROLL
          for (int i = 0; i < 4; ++i) low[i] = ptx::roundToTf32(a[s][i] - asFloat(high[i]));
          ptx::mmaM16N8K8Tf32(c[n], low, b0, b1);
          ptx::mmaM16N8K8Tf32(c[n], high, ptx::roundToTf32(b[s][n][0] - asFloat(b0)),
                              ptx::roundToTf32(b[s][n][1] - asFloat(b1)));
        }
        ptx::mmaM16N8K8Tf32(c[n], high, b0, b1);
      }
    }
  }
}

/// One element, in which a factor of 0 in `a` forgets.
template <class Product>
SEQPAR_DEVICE_NOINLINE float element(const Product& f, int row, int column) {
  float sum = 0;
  for (int k = 0; k < f.terms; ++k) sum += forgetting(f.a.at(row, k), f.b.at(k, column));
  return sum;
}

/// The sum of products, rows x columns (multiples of 16), calls store(row, column, value) for each element. An element
/// that is not finite is computed again, so that NaN behind a factor of 0 is forgotten.
template <int kProducts, class Store>
SEQPAR_DEVICE void multiply(const Factors (&products)[kProducts], int rows, int columns, bool exact,
                            const Store& store) {
  const int lane = ptx::thread() % 32, warp = ptx::uniform(ptx::thread() / 32), tiles = columns / kBlock;
  for (int tile = warp; tile < rows / kBlock * tiles; tile += kWarps) {
    const int row = tile / tiles * kBlock, column = tile % tiles * kBlock;
    float c[2][4] = {};
    SEQPAR_UNROLL
    for (int i = 0; i < kProducts; ++i) multiplyTile(c, products[i], row, column, exact);
    SEQPAR_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int r = row + lane / 4 + 8 * (i / 2 % 2), n = column + 8 * (i / 4) + lane % 4 * 2 + i % 2;
      float value = c[i / 4][i % 4];
      if (!(value - value == 0)) {
        value = 0;
        for (int j = 0; j < kProducts; ++j) value += element(products[j], r, n);
      }
      store(r, n, value);
    }
  }
}
template <class Store>
SEQPAR_DEVICE void multiply(const Factors& product, int rows, int columns, bool exact, const Store& store) {
  const Factors products[] = {product};
  multiply(products, rows, columns, exact, store);
}

/// An element of a tensor of a seqparDataType_t.
SEQPAR_DEVICE float loadNumber(const void* data, int type, int64_t index) {
  if (type == seqparFloat32) return static_cast<const float*>(data)[index];
  const uint32_t bits = static_cast<const uint16_t*>(data)[index];
  return type == seqparBfloat16 ? bfloatToFloat(bits) : halfToFloat(bits);
}
SEQPAR_DEVICE void storeNumber(void* data, int type, int64_t index, float value) {
  if (type == seqparFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    const uint32_t bits = type == seqparBfloat16 ? ptx::pack<Bf16>(value, 0) : ptx::pack<Fp16>(value, 0);
    static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(bits);
  }
}
/// The index of a row.
template <class Pointer>
SEQPAR_DEVICE int64_t rowOf(const Strided<Pointer>& tensor, int64_t batch, int64_t token, int head) {
  return batch * tensor.batch + token * tensor.token + int64_t{head} * tensor.head;
}

SEQPAR_DEVICE float sumOfWarp(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += ptx::shflXor(x, mask);
  return x;
}

}  // namespace seqpar::attn::delta
