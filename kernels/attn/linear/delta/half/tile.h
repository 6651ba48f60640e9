// Products of tiles of 16-bit elements in shared memory by warps: ldmatrix and mma.m16n8k16, sums in fp32; and copies
// of such tiles.
#pragma once

#include "kernels/arch/async_copy.h"
#include "kernels/arch/mma.h"
#include "kernels/attn/linear/delta/half/memory.h"
#include "kernels/attn/linear/delta/product.h"

namespace seqpar::attn::delta::half {

/// An operand of a product. kTermsInRows: a row of memory has terms of one row (left) or column (right) of the product;
/// else a row of memory is one term.
template <bool kTermsInRows>
struct Operand {
  const uint16_t* data;
  int stride;
  SEQPAR_DEVICE uint16_t at(int index, int term) const {
    return kTermsInRows ? data[index * stride + term] : data[term * stride + index];
  }
};
using InRows = Operand<true>;
using AsRows = Operand<false>;

template <class T>
SEQPAR_DEVICE float toFloat(uint16_t bits) {
  return ptx::lowOf<T>(bits);
}
template <class T>
SEQPAR_DEVICE uint16_t rounded(float x) {
  return static_cast<uint16_t>(ptx::pack<T>(x, 0));
}

/// c += a b for rows row ... row + 15 and columns column ... column + 8 kTiles - 1, terms first ... last - 1 (multiples
/// of 16). Lane 4 g + p has rows g and g + 8, columns 2 p and 2 p + 1 of each tile.
template <class T, int kTiles, bool kLeft, bool kRight>
SEQPAR_DEVICE void accumulate(float (&c)[kTiles][4], const Operand<kLeft>& a, int row, const Operand<kRight>& b,
                              int column, int first, int last) {
  const int lane = ptx::thread() % 32, inEight = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 * 8;
  const uint16_t* left = kLeft ? a.data + (row + odd + inEight) * a.stride + first + upper
                               : a.data + (first + upper + inEight) * a.stride + row + odd;
  const uint16_t* right = kRight ? b.data + (column + upper + inEight) * b.stride + first + odd
                                 : b.data + (first + odd + inEight) * b.stride + column + upper;
  const int leftStep = kLeft ? 16 : 16 * a.stride, rightStep = kRight ? 16 : 16 * b.stride;
  const int tileStep = kRight ? 16 * b.stride : 16;
  SEQPAR_UNROLL
  for (int k = first; k < last; k += 16, left += leftStep, right += rightStep) {
    uint32_t x[4];
    if constexpr (kLeft) {
      ptx::ldmatrixX4(x, left);
    } else {
      ptx::ldmatrixX4Trans(x, left);
    }
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t y[4];
      if constexpr (kRight) {
        ptx::ldmatrixX4(y, right + n / 2 * tileStep);
      } else {
        ptx::ldmatrixX4Trans(y, right + n / 2 * tileStep);
      }
      ptx::mmaM16N8K16<T>(c[n], x, y[0], y[1]);
      ptx::mmaM16N8K16<T>(c[n + 1], x, y[2], y[3]);
    }
  }
}

/// One element, in which a factor of 0 in `a` forgets.
template <class T, bool kLeft, bool kRight>
SEQPAR_DEVICE_NOINLINE float element(const Operand<kLeft> a, int row, const Operand<kRight> b, int column, int first,
                                     int last) {
  float sum = 0;
  for (int k = first; k < last; ++k) sum += forgetting(toFloat<T>(a.at(row, k)), toFloat<T>(b.at(column, k)));
  return sum;
}

/// Calls each(row, column, c[n][e], c[n][e + 1]) for the pairs of a warp's tiles, e = 0 and 2.
template <int kTiles, class Each>
SEQPAR_DEVICE void eachPair(float (&c)[kTiles][4], int row, int column, const Each& each) {
  const int lane = ptx::thread() % 32, g = row + lane / 4, p = column + lane % 4 * 2;
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    each(g, p + 8 * n, c[n][0], c[n][1]);
    each(g + 8, p + 8 * n, c[n][2], c[n][3]);
  }
}

/// c = a b. Elements that are not finite are computed again, so that NaN behind a factor of 0 in `a` is forgotten.
template <class T, int kTiles, bool kLeft, bool kRight>
SEQPAR_DEVICE void multiply(float (&c)[kTiles][4], const Operand<kLeft>& a, int row, const Operand<kRight>& b,
                            int column, int first, int last) {
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
  accumulate<T>(c, a, row, b, column, first, last);
  float sum = 0;
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; ++n)
    sum += (c[n][0] - c[n][0]) + (c[n][1] - c[n][1]) + (c[n][2] - c[n][2]) + (c[n][3] - c[n][3]);
  if (sum == 0) return;
  const int g = row + ptx::thread() % 32 / 4, p = column + ptx::thread() % 4 * 2;
  SEQPAR_ROLLED
  for (int i = 0; i < 4 * kTiles; ++i) {  // few instructions: kernels that run once are bound by fetching them
    const float value = element<T>(a, g + i / 2 % 2 * 8, b, p + i / 4 * 8 + i % 2, first, last);
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (4 * n + e == i && !(c[n][e] - c[n][e] == 0)) c[n][e] = value;
      }
    }
  }
}
/// c += a b, in the same way.
template <class T, int kTiles, bool kLeft, bool kRight>
SEQPAR_DEVICE void add(float (&c)[kTiles][4], const Operand<kLeft>& a, int row, const Operand<kRight>& b, int column,
                       int first, int last) {
  float part[kTiles][4];
  multiply<T>(part, a, row, b, column, first, last);
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) c[n][e] += part[n][e];
  }
}

/// Stores a pair of neighbors; `to` is aligned to 4 bytes.
template <class T>
SEQPAR_DEVICE void storePair(uint16_t* to, float low, float high) {
  *reinterpret_cast<uint32_t*>(to) = ptx::pack<T>(low, high);
}

/// log2 of the 16-byte units of a row of 32, 64 or 128 columns.
SEQPAR_DEVICE int unitsOf(int columns) {
  return columns == 128 ? 4 : columns == 64 ? 3 : 2;
}
/// Copies rows of 16-byte units.
SEQPAR_DEVICE void copyRows(uint16_t* to, int toStride, const uint16_t* from, int fromStride, int rows, int columns) {
  const int units = unitsOf(columns);
  for (int i = ptx::thread(); i < rows << units; i += kThreads) {
    const int r = i >> units, c = (i & ((1 << units) - 1)) * 8;
    uint32_t words[4];
    ptx::load(words, from + r * fromStride + c);
    ptx::store(to + r * toStride + c, words);
  }
}
/// Starts such a copy to shared memory. The caller commits.
SEQPAR_DEVICE void startRows(uint16_t* to, int toStride, const uint16_t* from, int fromStride, int rows, int columns) {
  const int units = unitsOf(columns);
  for (int i = ptx::thread(); i < rows << units; i += kThreads) {
    const int r = i >> units, c = (i & ((1 << units) - 1)) * 8;
    ptx::cpAsync16(to + r * toStride + c, from + r * fromStride + c, true);
  }
}

/// Loads a chunk's rows of a tensor, columns first ... first + width - 1, to shared memory. Elements beyond the
/// tensor's `columns` and rows behind the chunk's are 0.
SEQPAR_DEVICE void loadTensor(uint16_t* to, int stride, const Input& tensor, int64_t batch, const Chunk& chunk,
                              int head, int first, int width, int columns) {
  const int units = unitsOf(width);
  for (int i = ptx::thread(); i < kRows << units; i += kThreads) {
    const int t = i >> units, c = (i & ((1 << units) - 1)) * 8, left = columns - first - c;
    uint32_t words[4] = {};
    if (t < chunk.rows && left > 0) {
      const uint16_t* const from =
          static_cast<const uint16_t*>(tensor.data) + rowOf(tensor, batch, chunk.first + t, head) + first + c;
      if (left >= 8 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        ptx::load(words, from);
      } else {
        SEQPAR_UNROLL
        for (int j = 0; j < 8; ++j) words[j / 2] |= j < left ? static_cast<uint32_t>(from[j]) << j % 2 * 16 : 0;
      }
    }
    ptx::store(to + t * stride + c, words);
  }
}
/// Stores a chunk's rows from shared memory to a tensor.
SEQPAR_DEVICE void storeTensor(const Output& tensor, int64_t batch, const Chunk& chunk, int head, int first, int width,
                               int columns, const uint16_t* from, int stride) {
  const int units = unitsOf(width);
  SEQPAR_ROLLED
  for (int i = ptx::thread(); i < chunk.rows << units; i += kThreads) {
    const int t = i >> units, c = (i & ((1 << units) - 1)) * 8, left = columns - first - c;
    if (left <= 0) continue;
    uint32_t words[4];
    ptx::load(words, from + t * stride + c);
    uint16_t* const to = static_cast<uint16_t*>(tensor.data) + rowOf(tensor, batch, chunk.first + t, head) + first + c;
    if (left >= 8 && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      ptx::store(to, words);
    } else {
      SEQPAR_UNROLL
      for (int j = 0; j < 8; ++j) {
        if (j < left) to[j] = static_cast<uint16_t>(words[j / 2] >> j % 2 * 16);
      }
    }
  }
}

SEQPAR_DEVICE float betaOf(const Task& task, int64_t batch, const Chunk& chunk, int head, int t) {
  if (t >= chunk.rows) return 0;
  return loadNumber(task.beta.data, task.betaType, rowOf(task.beta, batch, chunk.first + t, head));
}
SEQPAR_DEVICE float decayOf(const Task& task, int64_t batch, const Chunk& chunk, int head, int t) {
  if (t >= chunk.rows || task.width == 0) return 1;
  return expf(loadNumber(task.gates.data, task.gateType, rowOf(task.gates, batch, chunk.first + t, head)));
}
/// The decay from token j to token i, at between[i][j]; those from the chunk's start and to its end. All threads call
/// it: a column and a quarter of the rows each.
SEQPAR_DEVICE void decaysBetween(float* between, const float* decay, float* in, float* out) {
  const int j = ptx::thread() % kRows, first = ptx::thread() / kRows * kBlock, last = first + kBlock;
  float run = 1;
  for (int i = j + 1; i < first; ++i) run *= decay[i];
  for (int i = first; i < last; ++i) {
    if (i > j) run *= decay[i];
    between[i * kSquare + j] = run;
    if (j == 0) in[i] = run * decay[0];
  }
  if (last == kRows) out[j] = run;
}

/// norms[t] = scale, divided by the length of row t if rows are normalized. All threads call it.
template <class T>
SEQPAR_DEVICE void loadNorms(float* norms, const uint16_t* rows, bool normalize, float scale) {
  const int t = ptx::thread() / 4, part = ptx::thread() % 4;
  float squares = 0;
  if (normalize) {
    for (int c = part * 8; c < kKeys; c += 32) {
      uint32_t words[4];
      ptx::load(words, rows + t * kKeyStride + c);
      SEQPAR_UNROLL
      for (const uint32_t word : words) {
        const float low = ptx::lowOf<T>(word), high = ptx::highOf<T>(word);
        squares += low * low + high * high;
      }
    }
    squares += ptx::shflXor(squares, 1);
    squares += ptx::shflXor(squares, 2);
  }
  if (part == 0) norms[t] = scale * (normalize ? 1 / sqrtf(squares + 1e-6F) : 1);
}
static_assert(kThreads == 4 * kRows);

/// Multiplies row t of a tile by norms[t].
template <class T>
SEQPAR_DEVICE void scaleRows(uint16_t* rows, const float* norms) {
  for (int i = ptx::thread(); i < kRows * kKeys / 2; i += kThreads) {
    const int t = i / (kKeys / 2);
    uint16_t* const at = rows + t * kKeyStride + i % (kKeys / 2) * 2;
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(at);
    storePair<T>(at, norms[t] * ptx::lowOf<T>(pair), norms[t] * ptx::highOf<T>(pair));
  }
}

}  // namespace seqpar::attn::delta::half
