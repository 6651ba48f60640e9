// One algorithm for forward, dq, and dk with dv: a block owns some rows (or columns), keeps them in shared memory, and
// streams the columns (or rows) that they attend to. A warp has kOwned / kWarps of the owned ones. For the scores, a
// lane has one streamed row; for the products with the scores, every 32nd dimension.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/attn/softmax/launch.h"
#include "kernels/attn/softmax/numbers.cuh"

namespace seqpar::attn::softmax::band {

constexpr int kLanes = 32, kWarps = 4, kThreads = kWarps * kLanes;
constexpr int kEach = 8;                ///< owned by a warp
constexpr int kOwned = kWarps * kEach;  ///< owned by a block
constexpr int kStreamed = kLanes;       ///< streamed at a time

/// Rows of kDim elements in shared memory, padded so that neither row nor column accesses have bank conflicts.
template <int kDim>
struct Tile {
  static constexpr int kPitch = kDim + 4;
  static constexpr int kFloats = kLanes * kPitch;
  float* data;

  __device__ float* row(int i) const { return data + i * kPitch; }

  /// Loads `count` rows of a head starting at `first`; zero-fills the other rows, and the dimensions from `dim` on.
  __device__ void fill(const View& view, int64_t batch, int64_t head, int64_t first, int64_t count, int dim,
                       bool fours) const {
    const int64_t origin = batch * view.batch + head * view.head;
    for (int i = threadIdx.x; i < kLanes * kDim / 4; i += kThreads) {
      const int at = i / (kDim / 4), d = i % (kDim / 4) * 4;
      Vec<4> numbers = {};
      if (at < count) {
        const int64_t from = origin + (first + at) * view.token + d;
        if (fours && d < dim) {
          numbers = loadVec<4>(view.data, view.type, from);
        } else {
          for (int k = 0; k < 4 && d + k < dim; ++k)
            numbers.value[k] = loadVec<1>(view.data, view.type, from + k).value[0];
        }
      }
      *reinterpret_cast<float4*>(row(at) + d) =
          make_float4(numbers.value[0], numbers.value[1], numbers.value[2], numbers.value[3]);
    }
  }
};

/// products[i] = dot product of row (first + i) of `owned` and row (lane) of `streamed`.
template <int kDim>
__device__ void multiply(const Tile<kDim>& owned, int first, const Tile<kDim>& streamed, int dim,
                         float (&products)[kEach]) {
#pragma unroll
  for (float& product : products) product = 0;
  const float* mine = streamed.row(threadIdx.x % kLanes);
#pragma unroll 2
  for (int d = 0; d < dim; d += 4) {
    const float4 b = *reinterpret_cast<const float4*>(mine + d);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float4 a = *reinterpret_cast<const float4*>(owned.row(first + i) + d);
      products[i] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, products[i]))));
    }
  }
}

/// sums[i][k] += sum over the streamed s of weights[i][s] * streamed.row(s)[lane + 32 k].
template <int kDim>
__device__ void accumulate(const float* weights, const Tile<kDim>& streamed, float (&sums)[kEach][kDim / kLanes]) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll 1
  for (int s = 0; s < kStreamed; s += 4) {
    float4 w[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) w[i] = *reinterpret_cast<const float4*>(weights + i * kStreamed + s);
#pragma unroll
    for (int k = 0; k < kDim / kLanes; ++k) {
      const float *x = streamed.row(s) + lane + k * kLanes, *y = x + Tile<kDim>::kPitch, *z = y + Tile<kDim>::kPitch,
                  *u = z + Tile<kDim>::kPitch;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        sums[i][k] = fmaf(w[i].x, *x, fmaf(w[i].y, *y, fmaf(w[i].z, *z, fmaf(w[i].w, *u, sums[i][k]))));
      }
    }
  }
}

/// Stores a row of `dim` elements; a lane has dimension lane + 32 k in numbers[k].
template <int kNumbers>
__device__ void storeRow(const View& view, int64_t batch, int64_t head, int64_t token, int dim,
                         const float (&numbers)[kNumbers], float factor) {
  const int64_t to = batch * view.batch + head * view.head + token * view.token;
#pragma unroll
  for (int k = 0; k < kNumbers; ++k) {
    const int d = threadIdx.x % kLanes + k * kLanes;
    if (d < dim) storeVec<1>(view.data, view.type, to + d, {numbers[k] * factor});
  }
}

SEQPAR_DEVICE float* at(const RowView& view, int64_t batch, int64_t head, int64_t token) {
  return view.data + batch * view.batch + head * view.head + token * view.token;
}

/// The score that the softmax uses, and its derivative with respect to the product.
SEQPAR_DEVICE float scoreOf(float product, const BandProblem& args) {
  const float scaled = product * args.scale;
  return args.softcap == 0 ? scaled : args.softcap * tanhf(scaled / args.softcap);
}
SEQPAR_DEVICE float slopeOf(float score, const BandProblem& args) {
  if (args.softcap == 0) return args.scale;
  const float t = score / args.softcap;
  return args.scale * (1 - t * t);
}

/// Clamps a half-open range to [0, count).
struct Range {
  int64_t first, last;
  __device__ Range(int64_t from, int64_t to, int64_t count) : first(max(from, int64_t{0})), last(min(to, count)) {}
};

/// Shared memory, in bytes, for kTiles tiles and kWeights arrays of weights.
template <int kDim, int kTiles, int kWeights>
constexpr int sharedBytes() {
  return static_cast<int>(sizeof(float)) * (kTiles * Tile<kDim>::kFloats + kWeights * kOwned * kStreamed);
}

template <int kDim>
using Dim = std::integral_constant<int, kDim>;

/// Calls body(Dim<64>), Dim<128> or Dim<256>: the smallest sufficient one.
template <typename Body>
cudaError_t byDim(int64_t dim, Body body) {
  if (dim <= 64) return body(Dim<64>());
  if (dim <= 128) return body(Dim<128>());
  return body(Dim<256>());
}

inline dim3 gridOf(const BandProblem& problem, int64_t longest, int64_t heads) {
  // Each block iterates over the further heads of all batch entries, and over the further bands.
  constexpr int64_t kMostHeads = 65535, kMostBands = 4096;
  return dim3(static_cast<unsigned>((longest + kOwned - 1) / kOwned),
              static_cast<unsigned>(std::min(heads * problem.batch, kMostHeads)),
              static_cast<unsigned>(std::min(problem.count, kMostBands)));
}

}  // namespace seqpar::attn::softmax::band
