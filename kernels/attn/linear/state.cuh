// A warp's 16 columns of a head's state, transposed, in accumulator fragments C: rows are columns of v, columns are
// channels of k. Rounded to 16 bits it is B of q S.
#pragma once

#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/numbers.cuh"
#include "kernels/attn/linear/tile.cuh"

namespace seqpar::attn {

template <class Shape>
struct State {
  float tile[Shape::kKeyTiles][4];

  SEQPAR_DEVICE void clear() {
    each([](float& number, int, int) { number = 0; });
  }

  /// Calls act(element, channel of k, column of v in the warp's slice).
  template <class Act>
  SEQPAR_DEVICE void each(const Act& act) {
    const ptx::AccumulatorLayout layout{static_cast<int>(threadIdx.x) % 32};
#pragma unroll
    for (int key = 0; key < Shape::kKeyTiles; ++key) {
#pragma unroll
      for (int e = 0; e < 4; ++e) act(tile[key][e], layout.column(8 * key, e), layout.row(0, e));
    }
  }

  /// Stores to to[dk][dv] in device memory; its column 0 is the first of this warp, and `values` of its columns are
  /// valid.
  SEQPAR_DEVICE void store(float* to, int dk, int dv, int values) {
    each([&](float& number, int key, int value) {
      if (key < dk && value < values) to[key * dv + value] = number;
    });
  }

  SEQPAR_DEVICE bool anyNotFinite() {
    float sum = 0;
    each([&](float& number, int, int) { sum += number * 0.0F; });  // 0, or NaN
    return __any_sync(0xffffffffU, sum != sum) != 0;
  }

  /// The power of 2 that S is multiplied by before it is rounded to T. In fp16 it takes the warp's largest element to
  /// 2^13 to 2^14, so that neither large nor small states leave the type's range; kStateScale if an element is
  /// infinite.
  template <class T>
  SEQPAR_DEVICE float roundingScale() {
    if (Numbers<T>::kStateScale == 1) return 1;
    float largest = 0;
    each([&](float& number, int, int) { largest = fmaxf(largest, fabsf(number)); });
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
    }
    return roundingScaleOf<T>(largest);
  }

  /// B of q S for 16 channels from 16 * step on: S rounded after `change`. b[0], b[2] are for columns 0 to 7, b[1],
  /// b[3] for 8 to 15.
  template <class T, class Change>
  SEQPAR_DEVICE void round(uint32_t (&b)[4], int step, const Change& change) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float(&from)[4] = tile[2 * step + half];
      b[2 * half] = Numbers<T>::pack(change(from[0]), change(from[1]));
      b[2 * half + 1] = Numbers<T>::pack(change(from[2]), change(from[3]));
    }
  }

  /// Adds V^T K of 16 tokens: the fragments of V^T, and of K for 16 channels from 16 * step on.
  template <class T>
  SEQPAR_DEVICE void add(int step, const uint32_t (&values)[4], const uint32_t (&keys)[4]) {
    Numbers<T>::multiply(tile[2 * step], values, keys[0], keys[1]);
    Numbers<T>::multiply(tile[2 * step + 1], values, keys[2], keys[3]);
  }

  /// Adds `by` times V^T K of two blocks of 16 tokens; keys(fragments of K, block).
  template <class T, class Keys>
  SEQPAR_DEVICE void addTimes(float by, int step, const uint32_t (&values)[2][4], const Keys& keys) {
    float sums[2][4] = {};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint32_t b[4];
      keys(b, block);
      Numbers<T>::multiply(sums[0], values[block], b[0], b[1]);
      Numbers<T>::multiply(sums[1], values[block], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& number = tile[2 * step + i / 4][i % 4];
      number = fmaf(sums[i / 4][i % 4], by, number);
    }
  }

  /// Multiplies 16 channels from 16 * step on by decay[channel]; with `mayForget`, a decay of 0 discards even NaN.
  template <bool mayForget>
  SEQPAR_DEVICE void scale(int step, const float* decay, int lane) {
#pragma unroll
    for (int key = 2 * step; key < 2 * step + 2; ++key) {
      const float2 factor = *reinterpret_cast<const float2*>(decay + 8 * key + ptx::AccumulatorLayout{lane}.column());
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float by = e % 2 == 0 ? factor.x : factor.y;
        tile[key][e] = mayForget && by == 0 ? 0 : tile[key][e] * by;
      }
    }
  }

  SEQPAR_DEVICE void scale(int step, float by) {
#pragma unroll
    for (int key = 2 * step; key < 2 * step + 2; ++key) {
#pragma unroll
      for (int e = 0; e < 4; ++e) tile[key][e] *= by;
    }
  }
};

/// The power of 2 that takes the largest element of a warp's fragments of fp16 to 2^14 to 2^15, so that elements times
/// factors below 1 keep their bits in fp16; 1 if an element is not finite.
SEQPAR_DEVICE float raiseOf(const uint32_t (&values)[2][4]) {
  uint32_t largest = 0;  // without the sign: the exponent is in the highest 5 bits
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, max(values[i / 4][i % 4] << 1, values[i / 4][i % 4] << 17));
  constexpr uint32_t kInfinite = 31, kTarget = 127 + 15 + 14;  // exponents with a bias of 15; of 127 + 15
  const uint32_t exponent = ptx::reduxMax(largest) >> 27;
  return exponent == kInfinite ? 1 : asFloat((kTarget - exponent) << 23);
}

/// A fragment of V^T times a factor per token: lane 4 g + p has the factors of tokens 2p, 2p+1, 2p+8 and 2p+9.
template <class T>
SEQPAR_DEVICE void scaleValues(uint32_t (&values)[4], const float (&factors)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = Numbers<T>::unpack(values[i]);
    values[i] = Numbers<T>::pack(two.x * factors[i / 2 * 2], two.y * factors[i / 2 * 2 + 1]);
  }
}

}  // namespace seqpar::attn
