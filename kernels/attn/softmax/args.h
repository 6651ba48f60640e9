// Arguments of the softmax attention kernels on one GPU. Compiles everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "seqpar/types.h"

namespace seqpar::attn::softmax {

/// A tensor [batch][token][head][dim] with its strides in elements; the last dimension is dense.
struct View {
  void* data = nullptr;
  seqparDataType_t type = seqparFloat32;
  int64_t batch = 0, token = 0, head = 0;
};

/// One fp32 value per row, with strides in elements.
struct RowView {
  float* data = nullptr;
  int64_t batch = 0, head = 0, token = 0;
};

/// Query `row` + i sees key `column` + j if i + lower <= j <= i + upper, 0 <= i < rows, 0 <= j < columns. Bounds are
/// within +-kUnbounded, so sums with them do not overflow.
struct Band {
  static constexpr int64_t kUnbounded = int64_t{1} << 40;
  int64_t row, rows, column, columns, lower, upper;
};

/// Attention in fp32 arithmetic to any bands, in one launch for all bands. Query head h uses key head (h + phase) /
/// group.
struct BandProblem {
  int64_t batch = 1, heads = 1, kvHeads = 1, group = 1, phase = 0, headDim = 1, valueDim = 1;
  float scale = 1, softcap = 0;
  const Band* bands = nullptr;  ///< in device memory. No two share a row (forward, dq) or a column (dk, dv)
  int64_t count = 0, longestRows = 0, longestColumns = 0;
  View q, k, v;
  RowView lse;      ///< forward: out, natural logarithms; backward: in
  View out;         ///< forward: out, normalized over the band
  View dOut;        ///< backward: in
  RowView delta;    ///< backward: in, rowsum(dOut * out)
  View dq, dk, dv;  ///< backward: out, not accumulated
};

/// A partial result of rows `first` to `first` + `tokens` - 1 of an accumulator; its own rows start at 0. `out` is not
/// read for rows with an lse of -inf.
struct Part {
  View out;
  RowView lse;
  int64_t first = 0, tokens = 0;
};

constexpr int kMostParts = 3;

/// Merging of partial results: (out, lse) = (sum, sumLse) merged with all parts.
struct Merge {
  int64_t batch = 1, tokens = 0, heads = 1, dim = 1;
  View sum;  ///< fp32; data null: empty
  RowView sumLse;
  Part parts[kMostParts];
  int count = 0;
  View out;                      ///< may be `sum`
  RowView lse;                   ///< may be sumLse; data null: not written
  const float* sinks = nullptr;  ///< [heads]; null: none. They join the denominator
};

/// Addition of gradients: out = sum + all parts, in fp32. The lse of the parts is not read.
struct Sum {
  int64_t batch = 1, tokens = 0, heads = 1, dim = 1;
  View sum;  ///< fp32; data null: zeros
  Part parts[kMostParts];
  int count = 0;
  View out;
};

}  // namespace seqpar::attn::softmax
