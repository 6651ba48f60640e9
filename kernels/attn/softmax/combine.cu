// Merges and adds partial results of attention, and converts them to outputs; gathers tokens. All arithmetic is fp32;
// the order of terms is fixed.
//
// Work      a warp processes a row, or a group of its lanes a short row, so that each lane reads 16 bytes; CTAs of 256
//           threads in steps of the grid. sinkGradient: a CTA has one head
// Roles     all warps alike
// Tiles     1, 4 or 8 elements per lane and access
// Smem      sinkGradient: a float per thread
// Barriers  sinkGradient: __syncthreads() between the steps of a tree of sums
// Overlap   none
#include <algorithm>

#include "kernels/attn/softmax/launch.h"
#include "kernels/attn/softmax/merge.h"
#include "kernels/attn/softmax/numbers.cuh"
#include "kernels/launch.h"

namespace seqpar::attn::softmax {
namespace {

constexpr int kThreads = 256, kLanes = 32, kLog2Lanes = 5, kWarps = kThreads / kLanes;
constexpr int64_t kMostCtas = 1 << 16;

/// A row of [batch][tokens][heads].
struct Row {
  int64_t batch, token, head;

  __device__ Row(int64_t index, int64_t tokens, int64_t heads) {
    const auto before = static_cast<int64_t>(quotient(index, heads));
    head = index - before * heads;
    batch = static_cast<int64_t>(quotient(before, tokens));
    token = before - batch * tokens;
  }
  __device__ int64_t in(const View& view) const { return batch * view.batch + token * view.token + head * view.head; }
  __device__ int64_t in(const RowView& view) const {
    return batch * view.batch + token * view.token + head * view.head;
  }
  /// Sets `source` to this row's index within `part`; returns false if the part does not contain the row.
  __device__ bool of(const Part& part, Row& source) const {
    source = *this;
    source.token = token - part.first;
    return source.token >= 0 && source.token < part.tokens;
  }
};

/// Calls body(row) for all rows, each on 2^log2Lanes lanes of a warp.
template <typename Body>
__device__ void eachRow(int log2Lanes, int64_t batch, int64_t tokens, int64_t heads, Body body) {
  const int64_t rows = batch * tokens * heads;
  const int ofCta = kThreads >> log2Lanes;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * ofCta + (threadIdx.x >> log2Lanes); i < rows;
       i += static_cast<int64_t>(gridDim.x) * ofCta) {
    body(Row(i, tokens, heads));
  }
}

/// Mask of the lanes that share this lane's row.
__device__ unsigned rowLanes(int log2Lanes) {
  const unsigned lanes = 1U << log2Lanes;
  if (lanes == kLanes) return ~0U;
  return ((1U << lanes) - 1) << (threadIdx.x % kLanes & ~(lanes - 1));
}

template <int kWidth>
__device__ void addScaled(Vec<kWidth>& sum, const void* data, seqparDataType_t type, int64_t at, float factor) {
  const auto more = loadVec<kWidth>(data, type, at);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum.value[i] = fmaf(factor, more.value[i], sum.value[i]);
}

/// A factor of 0 stays 0, even if the weight is NaN, so absent data is not read.
__device__ void scale(float& factor, float weight) {
  if (factor != 0) factor *= weight;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) mergeRows(const __grid_constant__ Merge args, int log2Lanes) {
  const int lanes = 1 << log2Lanes, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  eachRow(log2Lanes, args.batch, args.tokens, args.heads, [&](const Row& row) {
    float lse = args.sum.data == nullptr ? -INFINITY : args.sumLse.data[row.in(args.sumLse)];
    float sumFactor = lse == -INFINITY ? 0.0f : 1.0f;
    float factors[kMostParts] = {};
    int64_t at[kMostParts] = {};
#pragma unroll
    for (int i = 0; i < kMostParts; ++i) {
      if (i >= args.count) break;
      Row source = row;
      if (!row.of(args.parts[i], source)) continue;
      at[i] = source.in(args.parts[i].out);
      const auto weights = mergeWeights(lse, args.parts[i].lse.data[source.in(args.parts[i].lse)]);
      lse = weights.lse;
      scale(sumFactor, weights.a);
#pragma unroll
      for (int before = 0; before < i; ++before) scale(factors[before], weights.a);
      factors[i] = weights.b;
    }
    if (args.sinks != nullptr) {
      // A sink is a partial result with value 0.
      const auto weights = mergeWeights(lse, args.sinks[row.head]);
      lse = weights.lse;
      scale(sumFactor, weights.a);
#pragma unroll
      for (float& factor : factors) scale(factor, weights.a);
    }
    const int64_t from = row.in(args.sum), to = row.in(args.out);
    for (int64_t d = lane * kWidth; d < args.dim; d += lanes * kWidth) {
      Vec<kWidth> out = {};
      // Data with a factor of 0 is not read: it may be uninitialized.
      if (sumFactor != 0) addScaled(out, args.sum.data, args.sum.type, from + d, sumFactor);
#pragma unroll
      for (int i = 0; i < kMostParts; ++i) {
        if (factors[i] != 0) {
          addScaled(out, args.parts[i].out.data, args.parts[i].out.type, at[i] + d, factors[i]);
        }
      }
      storeVec(args.out.data, args.out.type, to + d, out);
    }
    __syncwarp(rowLanes(log2Lanes));  // wait until all lanes have read the logarithm
    if (lane == 0 && args.lse.data != nullptr) args.lse.data[row.in(args.lse)] = lse;
  });
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) sumRows(const __grid_constant__ Sum args, int log2Lanes) {
  const int lanes = 1 << log2Lanes, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  eachRow(log2Lanes, args.batch, args.tokens, args.heads, [&](const Row& row) {
    const int64_t from = row.in(args.sum), to = row.in(args.out);
    for (int64_t d = lane * kWidth; d < args.dim; d += lanes * kWidth) {
      Vec<kWidth> out = {};
      if (args.sum.data != nullptr) out = loadVec<kWidth>(args.sum.data, args.sum.type, from + d);
#pragma unroll
      for (int i = 0; i < kMostParts; ++i) {
        Row source = row;
        if (i < args.count && row.of(args.parts[i], source)) {
          addScaled(out, args.parts[i].out.data, args.parts[i].out.type, source.in(args.parts[i].out) + d, 1.0f);
        }
      }
      storeVec(args.out.data, args.out.type, to + d, out);
    }
  });
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    deltaRows(View a, View b, RowView delta, int64_t batch, int64_t tokens, int64_t heads, int64_t dim) {
  const int lane = threadIdx.x % kLanes;
  eachRow(kLog2Lanes, batch, tokens, heads, [&](const Row& row) {
    float sum = 0;
    for (int64_t d = lane * kWidth; d < dim; d += kLanes * kWidth) {
      const auto x = loadVec<kWidth>(a.data, a.type, row.in(a) + d);
      const auto y = loadVec<kWidth>(b.data, b.type, row.in(b) + d);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum = fmaf(x.value[i], y.value[i], sum);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    if (lane == 0) delta.data[row.in(delta)] = sum;
  });
}

/// One block per head.
__global__ void __launch_bounds__(kThreads)
    sinkGradient(const float* sinks, RowView lse, RowView delta, float* dSinks, int64_t batch, int64_t tokens) {
  __shared__ float sums[kThreads];
  const int64_t head = blockIdx.x;
  const float sink = sinks[head];
  float sum = 0;
  for (int64_t i = threadIdx.x; i < batch * tokens; i += kThreads) {
    const int64_t b = i / tokens, token = i % tokens;
    const float all = lse.data[b * lse.batch + head * lse.head + token * lse.token];
    // Without keys and with a sink of -inf the softmax is empty.
    if (sink != -INFINITY)
      sum -= expf(sink - all) * delta.data[b * delta.batch + head * delta.head + token * delta.token];
  }
  sums[threadIdx.x] = sum;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  if (threadIdx.x == 0) dSinks[head] = sums[0];
}

__global__ void __launch_bounds__(kThreads)
    copyRows(RowView to, RowView from, float value, int64_t batch, int64_t tokens, int64_t heads) {
  const int64_t count = batch * tokens * heads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto before = static_cast<int64_t>(quotient(i, tokens)), b = static_cast<int64_t>(quotient(before, heads));
    const int64_t token = i - before * tokens, head = before - b * heads;
    to.data[b * to.batch + head * to.head + token * to.token] =
        from.data == nullptr ? value : from.data[b * from.batch + head * from.head + token * from.token];
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) gatherTokens(View to, View from, const int32_t* index, int64_t batch,
                                                         int64_t tokens, int64_t heads, int64_t dim, int log2Lanes) {
  const int lanes = 1 << log2Lanes, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  eachRow(log2Lanes, batch, tokens, heads, [&](const Row& row) {
    Row source = row;
    source.token = index[row.token];
    const int64_t at = source.in(from), into = row.in(to);
    for (int64_t d = lane * kWidth; d < dim; d += lanes * kWidth) {
      storeVec(to.data, to.type, into + d, loadVec<kWidth>(from.data, from.type, at + d));
    }
  });
}

unsigned ctasFor(int64_t warps) {
  return static_cast<unsigned>(std::min<int64_t>(kMostCtas, (warps + kWarps - 1) / kWarps));
}

template <typename Args>
bool by(int width, const Args& args) {
  bool all = by(width, args.sum, args.dim) && by(width, args.out, args.dim);
  for (int i = 0; i < args.count; ++i) all = all && by(width, args.parts[i].out, args.dim);
  return all;
}

/// Launches the kernel for accesses of one, four or eight elements that suits `args`, with as many lanes as a row
/// needs.
template <typename Args>
cudaError_t launchRowsOf(const Args& args, void (*ones)(Args, int), void (*fours)(Args, int), void (*eights)(Args, int),
                         cudaStream_t stream) {
  const int64_t rows = args.batch * args.tokens * args.heads;
  if (rows == 0) return cudaSuccess;
  const int width = by(8, args) ? 8 : by(4, args) ? 4 : 1;
  int log2Lanes = 0;
  while (log2Lanes < kLog2Lanes && (width << log2Lanes) < args.dim) ++log2Lanes;
  const int64_t warps = ((rows << log2Lanes) + kLanes - 1) / kLanes;
  return launchKernel(width == 8   ? eights
                      : width == 4 ? fours
                                   : ones,
                      {ctasFor(warps), kThreads, 0, stream}, args, log2Lanes);
}

}  // namespace

cudaError_t prepareCombineKernels() {
  const void* const kernels[] = {
      reinterpret_cast<const void*>(mergeRows<1>),    reinterpret_cast<const void*>(mergeRows<4>),
      reinterpret_cast<const void*>(mergeRows<8>),    reinterpret_cast<const void*>(sumRows<8>),
      reinterpret_cast<const void*>(sumRows<1>),      reinterpret_cast<const void*>(sumRows<4>),
      reinterpret_cast<const void*>(deltaRows<1>),    reinterpret_cast<const void*>(deltaRows<4>),
      reinterpret_cast<const void*>(sinkGradient),    reinterpret_cast<const void*>(copyRows),
      reinterpret_cast<const void*>(gatherTokens<1>), reinterpret_cast<const void*>(gatherTokens<8>)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    const auto result = cudaFuncGetAttributes(&attributes, kernel);
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}

cudaError_t launchMerge(const Merge& merge, cudaStream_t stream) {
  return launchRowsOf(merge, mergeRows<1>, mergeRows<4>, mergeRows<8>, stream);
}

cudaError_t launchSum(const Sum& sum, cudaStream_t stream) {
  return launchRowsOf(sum, sumRows<1>, sumRows<4>, sumRows<8>, stream);
}

cudaError_t launchDelta(const View& a, const View& b, const RowView& delta, int64_t batch, int64_t tokens,
                        int64_t heads, int64_t dim, cudaStream_t stream) {
  const int64_t rows = batch * tokens * heads;
  if (rows == 0) return cudaSuccess;
  if (byFours(a, dim) && byFours(b, dim))
    return launchKernel(deltaRows<4>, {ctasFor(rows), kThreads, 0, stream}, a, b, delta, batch, tokens, heads, dim);
  return launchKernel(deltaRows<1>, {ctasFor(rows), kThreads, 0, stream}, a, b, delta, batch, tokens, heads, dim);
}

cudaError_t launchSinkGradient(const float* sinks, const RowView& lse, const RowView& delta, float* dSinks,
                               int64_t batch, int64_t tokens, int64_t heads, cudaStream_t stream) {
  if (heads == 0) return cudaSuccess;
  return launchKernel(sinkGradient, {static_cast<unsigned>(heads), kThreads, 0, stream}, sinks, lse, delta, dSinks,
                      batch, tokens);
}

cudaError_t launchRows(const RowView& to, const RowView& from, float value, int64_t batch, int64_t tokens,
                       int64_t heads, cudaStream_t stream) {
  const int64_t count = batch * tokens * heads;
  if (count == 0) return cudaSuccess;
  return launchKernel(copyRows, {ctasFor((count + kLanes - 1) / kLanes), kThreads, 0, stream}, to, from, value, batch,
                      tokens, heads);
}

cudaError_t launchGather(const View& to, const View& from, const int32_t* index, int64_t batch, int64_t tokens,
                         int64_t heads, int64_t dim, cudaStream_t stream) {
  const int64_t rows = batch * tokens * heads;
  if (rows == 0) return cudaSuccess;
  const int width = by(8, to, dim) && by(8, from, dim) ? 8 : 1;
  int log2Lanes = 0;
  while (log2Lanes < kLog2Lanes && (width << log2Lanes) < dim) ++log2Lanes;
  const int64_t warps = ((rows << log2Lanes) + kLanes - 1) / kLanes;
  return launchKernel(width == 8 ? gatherTokens<8> : gatherTokens<1>, {ctasFor(warps), kThreads, 0, stream}, to, from,
                      index, batch, tokens, heads, dim, log2Lanes);
}

}  // namespace seqpar::attn::softmax
