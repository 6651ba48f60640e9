// Outputs of 16 tokens and a warp's 16 columns of v, in two accumulator tiles C.
#pragma once

#include "kernels/attn/linear/numbers.cuh"

namespace seqpar::attn {

struct BlockOutputs {
  float tile[2][4] = {};

  /// Calls act(element, token).
  template <class Act>
  SEQPAR_DEVICE void each(const Act& act) {
    const ptx::AccumulatorLayout layout{static_cast<int>(threadIdx.x) % 32};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) act(tile[n][e], layout.row(0, e));
    }
  }

  /// Adds A times 16 columns; `b` is their B, or the A of their transpose.
  template <class T>
  SEQPAR_DEVICE void add(const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    Numbers<T>::multiply(tile[0], a, b[0], b[2]);
    Numbers<T>::multiply(tile[1], a, b[1], b[3]);
  }

  /// Stores 16 bytes per lane: the four lanes of a row exchange their columns. `at` is column 0 of the warp's slice in
  /// the first row; `rows` rows and `values` columns are valid.
  template <class T>
  SEQPAR_DEVICE void store(char* at, int64_t stride, int64_t rows, int values) {
    const int lane = static_cast<int>(threadIdx.x) % 32, place = lane % 4;
    // Rows g and g + 8, columns 0 to 7 and 8 to 15 each: after the exchange, lane p has all of part p.
    uint32_t words[4] = {Numbers<T>::pack(tile[0][0], tile[0][1]), Numbers<T>::pack(tile[1][0], tile[1][1]),
                         Numbers<T>::pack(tile[0][2], tile[0][3]), Numbers<T>::pack(tile[1][2], tile[1][3])};
    exchange<1>(words, place);
    exchange<2>(words, place);
    const int row = lane / 4 + 8 * (place / 2), column = 8 * (place % 2);
    if (row < rows && column < values) {
      *reinterpret_cast<uint4*>(at + row * stride + column * 2) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

 private:
  /// One step of the 4 x 4 transpose among four lanes.
  template <int Distance>
  static SEQPAR_DEVICE void exchange(uint32_t (&words)[4], int place) {
    const bool upper = (place & Distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & Distance) != 0) continue;
      uint32_t& low = words[i];
      uint32_t& high = words[i + Distance];
      const uint32_t got = __shfl_xor_sync(0xffffffffU, upper ? low : high, Distance);
      low = upper ? got : low;
      high = upper ? high : got;
    }
  }
};

}  // namespace seqpar::attn
