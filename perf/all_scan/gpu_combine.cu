#include <mma.h>

#include <algorithm>

#include "common/cuda.h"
#include "gpu_combine.h"

namespace seqpar::perf {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 132 * 8;
constexpr int kColumns = 32;          ///< columns of x per block of a MATRIX kernel
constexpr int kPitch = kColumns + 4;  ///< of a row of x in shared memory
constexpr int kTile = 16;
constexpr int kDepth = 8;

/// The arguments of all kernels.
struct Task {
  MapList maps;
  const float* start;
  float *out, *total;
  size_t begin, end;  ///< rows, or heads for MATRIX
  int op, dk, dv;
};

__device__ float combined(float a, float x, float s) {
  return fmaf(a, x, s);
}
__device__ float4 combined(float a, float4 x, float4 s) {
  return {fmaf(a, x.x, s.x), fmaf(a, x.y, s.y), fmaf(a, x.z, s.z), fmaf(a, x.w, s.w)};
}

__device__ float factorOf(const Task& task, int map, size_t row) {
  if (task.op == seqparScanSum) return 1;
  return task.maps
      .a[map * task.maps.aStride + static_cast<std::ptrdiff_t>(task.op == seqparScanScalar ? row / task.dk : row)];
}

/// SUM, SCALAR and DIAG: elementwise.
template <typename Vector>
__global__ void __launch_bounds__(kThreads) combineRows(const __grid_constant__ Task task) {
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const auto columns = static_cast<unsigned>(task.dv / kWidth);
  const auto elements = static_cast<unsigned>((task.end - task.begin) * columns);
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < elements; i += gridDim.x * kThreads) {
    const size_t row = task.begin + i / columns;
    const size_t at = task.begin * columns + i;
    const auto stateOf = [&](int map) {
      return reinterpret_cast<const Vector*>(task.maps.s + map * task.maps.sStride)[at];
    };
    Vector x{};
    if (task.start != nullptr) x = reinterpret_cast<const Vector*>(task.start)[at];
    for (int map = 0; map < task.maps.count; ++map) x = combined(factorOf(task, map, row), x, stateOf(map));
    reinterpret_cast<Vector*>(task.out)[at] = x;
    if (task.total == nullptr) continue;
    const int last = task.maps.count;
    reinterpret_cast<Vector*>(task.total)[at] = combined(factorOf(task, last, row), x, stateOf(last));
  }
}

/// The work of a block of a MATRIX kernel: some columns of one head.
struct Columns {
  __device__ explicit Columns(const Task& task)
      : head(task.begin + blockIdx.x),
        column(static_cast<int>(blockIdx.y) * kColumns),
        width(min(kColumns, task.dv - column)) {}

  __device__ size_t at(const Task& task, int row) const { return (head * task.dk + row) * task.dv + column; }
  __device__ const float* matrix(const Task& task, int map) const {
    return task.maps.a + map * task.maps.aStride + head * task.dk * task.dk;
  }

  __device__ void load(const Task& task, float* x) const {
    for (int i = threadIdx.x; i < task.dk * kColumns; i += kThreads) {
      const int row = i / kColumns, j = i % kColumns;
      x[row * kPitch + j] = task.start != nullptr && j < width ? task.start[at(task, row) + j] : 0.0f;
    }
    __syncthreads();
  }
  __device__ void store(const Task& task, const float* x, float* to) const {
    for (int i = threadIdx.x; i < task.dk * kColumns; i += kThreads) {
      const int row = i / kColumns, j = i % kColumns;
      if (j < width) to[at(task, row) + j] = x[row * kPitch + j];
    }
    __syncthreads();
  }

  size_t head;
  int column, width;
};

/// x <- A x + S, in plain fp32; `y` has x's size.
template <bool kTransposed>
__device__ void applyPlain(const Task& task, const Columns& mine, int map, float* x, float* y) {
  const float* const a = mine.matrix(task, map);
  const float* const s = task.maps.s + map * task.maps.sStride;
  for (int i = threadIdx.x; i < task.dk * kColumns; i += kThreads) {
    const int row = i / kColumns, j = i % kColumns;
    float sum = j < mine.width ? s[mine.at(task, row) + j] : 0.0f;
    for (int k = 0; k < task.dk; ++k) {
      sum = fmaf(kTransposed ? a[k * task.dk + row] : a[row * task.dk + k], x[k * kPitch + j], sum);
    }
    y[row * kPitch + j] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < task.dk * kPitch; i += kThreads) x[i] = y[i];
  __syncthreads();
}

/// x <- A x + S on tensor cores: every warp computes 16 rows.
template <bool kTransposed>
__device__ void applyTensor(const Task& task, const Columns& mine, int map, float* x) {
  using namespace nvcuda::wmma;
  using Order = std::conditional_t<kTransposed, col_major, row_major>;
  const int row = static_cast<int>(threadIdx.x) / 32 * kTile;
  fragment<accumulator, kTile, kTile, kDepth, float> sums[kColumns / kTile];
  if (row < task.dk) {
    const float* const a = mine.matrix(task, map);
    const float* const s = task.maps.s + map * task.maps.sStride + mine.at(task, row);
    for (int tile = 0; tile < kColumns / kTile; ++tile) {
      load_matrix_sync(sums[tile], s + tile * kTile, task.dv, mem_row_major);
    }
    for (int k = 0; k < task.dk; k += kDepth) {
      fragment<matrix_a, kTile, kTile, kDepth, precision::tf32, Order> left;
      load_matrix_sync(left, kTransposed ? a + k * task.dk + row : a + row * task.dk + k, task.dk);
      for (int i = 0; i < left.num_elements; ++i) left.x[i] = __float_to_tf32(left.x[i]);
      for (int tile = 0; tile < kColumns / kTile; ++tile) {
        fragment<matrix_b, kTile, kTile, kDepth, precision::tf32, row_major> right;
        load_matrix_sync(right, x + k * kPitch + tile * kTile, kPitch);
        for (int i = 0; i < right.num_elements; ++i) right.x[i] = __float_to_tf32(right.x[i]);
        mma_sync(sums[tile], left, right, sums[tile]);
      }
    }
  }
  __syncthreads();
  if (row < task.dk) {
    for (int tile = 0; tile < kColumns / kTile; ++tile) {
      store_matrix_sync(x + row * kPitch + tile * kTile, sums[tile], kPitch, mem_row_major);
    }
  }
  __syncthreads();
}

template <bool kTransposed, bool kTensor>
__global__ void __launch_bounds__(kThreads) combineMatrices(const __grid_constant__ Task task) {
  extern __shared__ float x[];
  const Columns mine(task);
  mine.load(task, x);
  const auto apply = [&](int map) {
    if constexpr (kTensor) {
      applyTensor<kTransposed>(task, mine, map, x);
    } else {
      applyPlain<kTransposed>(task, mine, map, x, x + task.dk * kPitch);
    }
  };
  for (int map = 0; map < task.maps.count; ++map) apply(map);
  mine.store(task, x, task.out);
  if (task.total == nullptr) return;
  apply(task.maps.count);
  mine.store(task, x, task.total);
}

void launchMatrices(const Task& task, bool transposed, cudaStream_t stream) {
  const bool tensor = task.dk % kTile == 0 && task.dk <= kThreads / 32 * kTile && task.dv % kColumns == 0;
  auto* const kernel = tensor ? (transposed ? combineMatrices<true, true> : combineMatrices<false, true>)
                              : (transposed ? combineMatrices<true, false> : combineMatrices<false, false>);
  const size_t shared = static_cast<size_t>(task.dk) * kPitch * sizeof(float) * (tensor ? 1 : 2);
  checkCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
            "cudaFuncSetAttribute");
  const dim3 grid(static_cast<unsigned>(task.end - task.begin),
                  static_cast<unsigned>((task.dv + kColumns - 1) / kColumns));
  kernel<<<grid, kThreads, shared, stream>>>(task);
}

}  // namespace

void launchCombine(const AffineMap& map, const MapList& maps, const float* start, float* out, float* total,
                   size_t begin, size_t end, void* stream) {
  if (begin == end) return;
  const auto to = static_cast<cudaStream_t>(stream);
  const Task task{
      maps, start, out, total, begin, end, map.op, static_cast<int>(map.shape.dk), static_cast<int>(map.shape.dv)};
  if (map.op == seqparScanMatrix) {
    launchMatrices(task, map.transposed, to);
  } else {
    const size_t width = map.shape.dv % 4 == 0 ? 4 : 1;
    const size_t blocks = ((end - begin) * map.shape.dv / width + kThreads - 1) / kThreads;
    auto* const kernel = width == 4 ? combineRows<float4> : combineRows<float>;
    kernel<<<static_cast<unsigned>(std::min<size_t>(blocks, kMostBlocks)), kThreads, 0, to>>>(task);
  }
  checkCuda(cudaGetLastError(), "combine");
}

}  // namespace seqpar::perf
