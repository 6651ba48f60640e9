#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/support/caller_kernel.h"

namespace seqpar::attn::test {
namespace {

constexpr int kThreads = 64;
constexpr int kMostDim = 256;

__device__ double numberOf(float x) {
  return x;
}
__device__ double numberOf(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ double numberOf(__half x) {
  return __half2float(x);
}

template <typename Value>
__device__ Value* at(const seqparAttnTensor_t& t, int64_t b, int64_t row, int64_t head) {
  return static_cast<Value*>(t.data) + b * t.batchStride + row * t.tokenStride + head * t.headStride;
}

template <typename Value>
__device__ double dot(const Value* a, const Value* b, int64_t dim) {
  double sum = 0;
  for (int64_t e = 0; e < dim; ++e) sum += numberOf(a[e]) * numberOf(b[e]);
  return sum;
}

__device__ bool sees(const seqparAttnTile_t& t, int64_t i, int64_t j) {
  return (t.lower == INT64_MIN || j >= i + t.lower) && (t.upper == INT64_MAX || j <= i + t.upper);
}

/// A score, and its derivative by q k^T.
struct Score {
  double value, slope;
};

template <typename Value>
__device__ Score scoreOf(const seqparAttnTile_t& t, const Value* q, const Value* k) {
  const double score = t.scale * dot(q, k, t.headDim);
  if (t.softcap == 0) return {score, t.scale};
  const double bent = tanh(score / t.softcap);
  return {t.softcap * bent, t.scale * (1 - bent * bent)};
}

/// Of thread `index`: a row of one head.
struct RowPlace {
  int64_t b, head, row;
  __device__ RowPlace(int64_t index, int64_t heads, int64_t rows)
      : b(index / rows / heads), head(index / rows % heads), row(index % rows) {}
};

__device__ int64_t thread() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

template <typename Value>
__global__ void forwardRows(seqparAttnTile_t t) {
  if (thread() >= t.batch * t.heads * t.rows) return;
  const RowPlace place(thread(), t.heads, t.rows);
  const int64_t kv = place.head / (t.heads / t.kvHeads);
  const Value* const q = at<Value>(t.q, place.b, place.row, place.head);
  const auto score = [&](int64_t j) { return scoreOf(t, q, at<Value>(t.k, place.b, j, kv)).value; };
  double most = -INFINITY, sum = 0, out[kMostDim] = {};
  for (int64_t j = 0; j < t.columns; ++j) {
    if (sees(t, place.row, j)) most = fmax(most, score(j));
  }
  for (int64_t j = 0; j < t.columns; ++j) {
    if (!sees(t, place.row, j)) continue;
    const double weight = exp(score(j) - most);
    sum += weight;
    for (int64_t e = 0; e < t.valueDim; ++e) out[e] += weight * numberOf(at<Value>(t.v, place.b, j, kv)[e]);
  }
  t.lse[place.b * t.lseBatchStride + place.head * t.lseHeadStride + place.row] =
      sum == 0 ? -INFINITY : static_cast<float>(most + log(sum));
  Value* const to = at<Value>(t.out, place.b, place.row, place.head);
  for (int64_t e = 0; e < t.valueDim; ++e) to[e] = Value(static_cast<float>(sum == 0 ? 0 : out[e] / sum));
}

/// The contribution of row i of a head to the gradients at key j.
struct Weights {
  double p, ds;
};

template <typename Value>
__device__ Weights weightsOf(const seqparAttnTile_t& t, int64_t b, int64_t head, int64_t kv, int64_t i, int64_t j,
                             double delta) {
  const auto score = scoreOf(t, at<Value>(t.q, b, i, head), at<Value>(t.k, b, j, kv));
  const double p = exp(score.value - double{t.lse[b * t.lseBatchStride + head * t.lseHeadStride + i]});
  return {p, p * (dot(at<Value>(t.dOut, b, i, head), at<Value>(t.v, b, j, kv), t.valueDim) - delta) * score.slope};
}

template <typename Value>
__device__ double deltaOf(const seqparAttnTile_t& t, int64_t b, int64_t head, int64_t i) {
  return dot(at<Value>(t.dOut, b, i, head), at<Value>(t.out, b, i, head), t.valueDim);
}

template <typename Value>
__global__ void queryGradients(seqparAttnTile_t t) {
  if (thread() >= t.batch * t.heads * t.rows) return;
  const RowPlace place(thread(), t.heads, t.rows);
  const int64_t kv = place.head / (t.heads / t.kvHeads);
  const double delta = deltaOf<Value>(t, place.b, place.head, place.row);
  double dq[kMostDim] = {};
  for (int64_t j = 0; j < t.columns; ++j) {
    if (!sees(t, place.row, j)) continue;
    const auto w = weightsOf<Value>(t, place.b, place.head, kv, place.row, j, delta);
    for (int64_t e = 0; e < t.headDim; ++e) dq[e] += w.ds * numberOf(at<Value>(t.k, place.b, j, kv)[e]);
  }
  Value* const to = at<Value>(t.dq, place.b, place.row, place.head);
  for (int64_t e = 0; e < t.headDim; ++e) to[e] = Value(static_cast<float>(dq[e]));
}

template <typename Value>
__global__ void keyGradients(seqparAttnTile_t t) {
  if (thread() >= t.batch * t.kvHeads * t.columns) return;
  const RowPlace place(thread(), t.kvHeads, t.columns);
  const int64_t group = t.heads / t.kvHeads, j = place.row;
  double dk[kMostDim] = {}, dv[kMostDim] = {};
  for (int64_t head = place.head * group; head < (place.head + 1) * group; ++head) {
    for (int64_t i = 0; i < t.rows; ++i) {
      if (!sees(t, i, j)) continue;
      const auto w = weightsOf<Value>(t, place.b, head, place.head, i, j, deltaOf<Value>(t, place.b, head, i));
      for (int64_t e = 0; e < t.headDim; ++e) dk[e] += w.ds * numberOf(at<Value>(t.q, place.b, i, head)[e]);
      for (int64_t e = 0; e < t.valueDim; ++e) dv[e] += w.p * numberOf(at<Value>(t.dOut, place.b, i, head)[e]);
    }
  }
  Value* const toK = at<Value>(t.dk, place.b, j, place.head);
  Value* const toV = at<Value>(t.dv, place.b, j, place.head);
  for (int64_t e = 0; e < t.headDim; ++e) toK[e] = Value(static_cast<float>(dk[e]));
  for (int64_t e = 0; e < t.valueDim; ++e) toV[e] = Value(static_cast<float>(dv[e]));
}

unsigned blocksOf(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

/// launch(Value()) for the tile's type; 1 if the kernels do not support it, else CUDA's error.
template <typename Launch>
int dispatch(void* self, const seqparAttnTile_t& tile, Launch launch) {
  ++*static_cast<std::atomic<int>*>(self);
  if (tile.headDim > kMostDim || tile.valueDim > kMostDim) return 1;
  if (tile.dataType == seqparFloat32) launch(float{});
  if (tile.dataType == seqparBfloat16) launch(__nv_bfloat16{});
  if (tile.dataType == seqparFloat16) launch(__half{});
  return cudaGetLastError();
}

int forward(void* self, const seqparAttnTile_t* tile, void* stream) {
  return dispatch(self, *tile, [&](auto value) {
    const unsigned blocks = blocksOf(tile->batch * tile->heads * tile->rows);
    forwardRows<decltype(value)><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*tile);
  });
}

int backward(void* self, const seqparAttnTile_t* tile, void* stream) {
  return dispatch(self, *tile, [&](auto value) {
    const auto on = static_cast<cudaStream_t>(stream);
    const unsigned queries = blocksOf(tile->batch * tile->heads * tile->rows);
    const unsigned keys = blocksOf(tile->batch * tile->kvHeads * tile->columns);
    queryGradients<decltype(value)><<<queries, kThreads, 0, on>>>(*tile);
    keyGradients<decltype(value)><<<keys, kThreads, 0, on>>>(*tile);
  });
}

}  // namespace

seqparAttnKernel_t callerKernel(std::atomic<int>& calls) {
  seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;
  kernel.forward = forward;
  kernel.backward = backward;
  kernel.self = &calls;
  return kernel;
}

}  // namespace seqpar::attn::test
