// Arrays of tokens and of rows as pointers with strides, for hosts and GPUs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "seqpar/attn_plan.h"

namespace seqpar::attn {

/// Bytes of an element.
constexpr size_t bytesOf(seqparDataType_t type) {
  return type == seqparFloat32 ? 4 : 2;
}

/// [batch][tokens][heads][dim], the last dimension dense. Strides are in elements.
struct Tensor {
  void* data = nullptr;
  seqparDataType_t type = seqparFloat32;
  int64_t batch = 0, tokens = 0, heads = 0, dim = 0;
  int64_t batchStride = 0, tokenStride = 0, headStride = 0;

  int64_t elements() const { return batch * tokens * heads * dim; }
  size_t bytes() const { return static_cast<size_t>(elements()) * bytesOf(type); }
  /// The address of an element, as bytes; null if the tensor has no data.
  std::byte* at(int64_t b, int64_t token, int64_t head) const {
    if (data == nullptr) return nullptr;
    return static_cast<std::byte*>(data) +
           (b * batchStride + token * tokenStride + head * headStride) * static_cast<int64_t>(bytesOf(type));
  }
  /// `count` tokens from `first` on.
  Tensor rows(int64_t first, int64_t count) const {
    Tensor part = *this;
    part.data = at(0, first, 0);
    part.tokens = count;
    return part;
  }
  /// `count` heads from `first` on.
  Tensor headsFrom(int64_t first, int64_t count) const {
    Tensor part = *this;
    part.data = at(0, 0, first);
    part.heads = count;
    return part;
  }
  /// True if the strides equal those of a head range of a row-major tensor with `rowHeads` heads per token.
  bool hasRowLayout(int64_t rowHeads) const {
    return elements() == 0 || ((heads == 1 || headStride == dim) && (tokens == 1 || tokenStride == rowHeads * dim) &&
                               (batch == 1 || batchStride == tokens * rowHeads * dim));
  }
  /// True if the elements are contiguous in row-major order.
  bool dense() const { return hasRowLayout(heads); }
};

/// A dense tensor at `data`.
inline Tensor denseTensor(void* data, seqparDataType_t type, int64_t batch, int64_t tokens, int64_t heads,
                          int64_t dim) {
  return {data, type, batch, tokens, heads, dim, tokens * heads * dim, heads * dim, dim};
}

/// A caller's tensor; strides that are all 0 mean dense.
inline Tensor tensorOf(const seqparAttnTensor_t& tensor, seqparDataType_t type, int64_t batch, int64_t tokens,
                       int64_t heads, int64_t dim) {
  if (tensor.batchStride == 0 && tensor.tokenStride == 0 && tensor.headStride == 0) {
    return denseTensor(tensor.data, type, batch, tokens, heads, dim);
  }
  return {tensor.data, type, batch, tokens, heads, dim, tensor.batchStride, tensor.tokenStride, tensor.headStride};
}

/// The argument of a plan of another operator: tensorOf() in reverse.
inline seqparAttnTensor_t argumentOf(const Tensor& tensor) {
  return {tensor.data, tensor.batchStride, tensor.tokenStride, tensor.headStride};
}

/// The first heads of a dense tensor at `data` with `rowHeads` heads per token.
inline Tensor tensorInRows(void* data, seqparDataType_t type, int64_t batch, int64_t tokens, int64_t heads,
                           int64_t rowHeads, int64_t dim) {
  return denseTensor(data, type, batch, tokens, rowHeads, dim).headsFrom(0, heads);
}

/// One fp32 value per row: [batch][heads][tokens], tokens dense. Strides are in elements.
struct Rows {
  float* data = nullptr;
  int64_t batch = 0, heads = 0, tokens = 0;
  int64_t batchStride = 0, headStride = 0;

  float* at(int64_t b, int64_t head, int64_t token) const {
    return data == nullptr ? nullptr : data + b * batchStride + head * headStride + token;
  }
  Rows rows(int64_t first, int64_t count) const {
    return {at(0, 0, first), batch, heads, count, batchStride, headStride};
  }
  Rows headsFrom(int64_t first, int64_t count) const {
    return {at(0, first, 0), batch, count, tokens, batchStride, headStride};
  }
  bool dense() const {
    return batch * heads * tokens == 0 ||
           ((heads == 1 || headStride == tokens) && (batch == 1 || batchStride == heads * tokens));
  }
  size_t bytes() const { return static_cast<size_t>(batch * heads * tokens) * sizeof(float); }
};

inline Rows denseRows(float* data, int64_t batch, int64_t heads, int64_t tokens) {
  return {data, batch, heads, tokens, heads * tokens, tokens};
}

}  // namespace seqpar::attn
