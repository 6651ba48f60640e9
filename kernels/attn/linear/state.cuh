// A warp's slice of a head's state, transposed, in the fragments C of tensor-core products: rows are columns of v,
// columns are channels of k. Rounded to 16 bits it is B of q S.
#pragma once

#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/mma.cuh"
#include "kernels/attn/linear/shape.h"

namespace seqpar::attn {

template <class Shape>
struct State {
  float tile[Shape::kValueTiles][Shape::kKeyTiles][4];

  __device__ __forceinline__ void clear() {
    each([](float& number, int, int) { number = 0; });
  }

  /// act(number, channel of k, column of v in the warp's slice).
  template <class Act>
  __device__ __forceinline__ void each(const Act& act) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int key = 0; key < Shape::kKeyTiles; ++key) {
#pragma unroll
      for (int value = 0; value < Shape::kValueTiles; ++value) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          act(tile[value][key][e], 8 * key + 2 * (lane % 4) + e % 2, 16 * value + lane / 4 + 8 * (e / 2));
        }
      }
    }
  }

  /// to[dk][dv] of device memory, whose column 0 is the first of this warp; `values` of them are there.
  __device__ __forceinline__ void store(float* to, int dk, int dv, int values) {
    each([&](float& number, int key, int value) {
      if (key < dk && value < values) to[key * dv + value] = number;
    });
  }

  __device__ __forceinline__ bool anyNotFinite() {
    float sum = 0;
    each([&](float& number, int, int) { sum += number * 0.0F; });  // 0, or NaN
    return __any_sync(0xffffffffU, sum != sum) != 0;
  }

  /// += V^T K of a block: the fragments of V^T by rows, of K for channels 16 * step on.
  template <class T>
  __device__ __forceinline__ void add(int step, const uint32_t (&values)[Shape::kValueTiles][4],
                                      const uint32_t (&keys)[4]) {
#pragma unroll
    for (int value = 0; value < Shape::kValueTiles; ++value) {
      Numbers<T>::multiply(tile[value][2 * step], values[value], keys[0], keys[1]);
      Numbers<T>::multiply(tile[value][2 * step + 1], values[value], keys[2], keys[3]);
    }
  }

  /// Channels 16 * step on times decay[channel]; a decay of 0 forgets all, if it `mayForget`.
  template <bool mayForget>
  __device__ __forceinline__ void scale(int step, const float* decay) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int key = 2 * step; key < 2 * step + 2; ++key) {
      const float2 factor = *reinterpret_cast<const float2*>(decay + 8 * key + 2 * (lane % 4));
#pragma unroll
      for (int value = 0; value < Shape::kValueTiles; ++value) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float by = e % 2 == 0 ? factor.x : factor.y;
          float& number = tile[value][key][e];
          number = mayForget && by == 0 ? 0 : number * by;
        }
      }
    }
  }

  __device__ __forceinline__ void scaleAll(float by) {
    each([&](float& number, int, int) { number = by == 0 ? 0 : number * by; });
  }
};

/// fragments of V^T of a block, for `kValueTiles` times 16 columns from `column` on.
template <class Shape>
__device__ __forceinline__ void loadValues(uint32_t (&values)[Shape::kValueTiles][4], uint32_t tile, int row,
                                           int column, int lane) {
#pragma unroll
  for (int value = 0; value < Shape::kValueTiles; ++value) {
    loadTransposed(values[value], tile + Tile<Shape::kValues>::fragmentAcross(row, column + 16 * value, lane));
  }
}

/// Times a factor of each token: those of tokens 2p, 2p+1, 2p+8 and 2p+9 for lane 4 g + p.
template <class T, class Shape>
__device__ __forceinline__ void scaleValues(uint32_t (&values)[Shape::kValueTiles][4], const float (&factors)[4]) {
#pragma unroll
  for (int value = 0; value < Shape::kValueTiles; ++value) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = Numbers<T>::unpack(values[value][i]);
      values[value][i] = Numbers<T>::pack(two.x * factors[i / 2 * 2], two.y * factors[i / 2 * 2 + 1]);
    }
  }
}

}  // namespace seqpar::attn
