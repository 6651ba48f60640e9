// The hop of operators with a matrix per head, between NCCL's steps, in ordinary fp32 arithmetic.
//
// Work      a CTA of 32 x 8 threads has a tile of the state, of every gridDim.z-th head: grid (columns / 32, rows / 32,
//           heads)
// Roles     all threads alike: each has kTile / kRows rows of a column
// Tiles     32 x 32, fp32
// Smem      a tile of the matrix and a tile of x
// Barriers  __syncthreads(): tiles are loaded; they are free
// Overlap   none
#include "kernels/scan/nccl_matrix.h"

#include <algorithm>

#include "kernels/launch.h"
#include "kernels/vec.cuh"

namespace seqpar {
namespace {

constexpr int kTile = 32;  // rows and columns of a CTA's tile
constexpr int kRows = 8;   // rows of threads; each has kTile / kRows rows of the tile
constexpr unsigned kMostZ = 65535;

// A thread loads all elements of s that it needs before it stores, so outputs may alias s.
__global__ void matrixKernel(MapShape shape, MapHop hop) {
  __shared__ float tileA[kTile][kTile + 1];
  __shared__ float tileX[kTile][kTile + 1];
  const int dk = static_cast<int>(shape.dk);
  const int dv = static_cast<int>(shape.dv);
  const int column = static_cast<int>(blockIdx.x) * kTile + static_cast<int>(threadIdx.x);
  const int firstRow = static_cast<int>(blockIdx.y) * kTile;
  const std::size_t headElements = shape.dk * shape.dv;
  const std::size_t firstHead = hop.begin / headElements;
  const std::size_t heads = hop.count / headElements;
  for (std::size_t head = blockIdx.z; head < heads; head += gridDim.z) {
    bool present = hop.x.data != nullptr;
    if (present && hop.flags != nullptr) present = (hop.flags[firstHead + head] & SEQPAR_SCAN_RESET_IN) == 0;
    const bool keeps = present && hop.a.factors[head] != 0.0F;
    const float* a = hop.a.matrices + head * shape.dk * shape.dk;
    float sum[kTile / kRows] = {};
    for (int k = 0; keeps && k < dk; k += kTile) {
      __syncthreads();
      for (int row = static_cast<int>(threadIdx.y); row < kTile; row += kRows) {
        const int across = static_cast<int>(threadIdx.x);
        // Loads of `a` are coalesced in both orientations.
        const int i = shape.transposed ? firstRow + across : firstRow + row;
        const int j = shape.transposed ? k + row : k + across;
        const std::size_t at = shape.transposed ? std::size_t(j) * dk + i : std::size_t(i) * dk + j;
        const float value = i < dk && j < dk ? a[at] : 0.0F;
        tileA[shape.transposed ? across : row][shape.transposed ? row : across] = value;
        const bool inside = k + row < dk && column < dv;
        tileX[row][across] =
            inside
                ? loadVec<1>(hop.x.data, hop.x.type, head * headElements + std::size_t(k + row) * dv + column).value[0]
                : 0.0F;
      }
      __syncthreads();
#pragma unroll
      for (int part = 0; part < kTile / kRows; ++part) {
        const int row = static_cast<int>(threadIdx.y) + part * kRows;
        for (int j = 0; j < kTile; ++j) {
          sum[part] = applyFactor(tileA[row][j], tileX[j][threadIdx.x], sum[part]);
        }
      }
    }
    for (int part = 0; part < kTile / kRows; ++part) {
      const int row = firstRow + static_cast<int>(threadIdx.y) + part * kRows;
      if (row >= dk || column >= dv) continue;
      const std::size_t at = head * headElements + std::size_t(row) * dv + column;
      Vec<1> before{};
      Vec<1> after{};
      if (hop.s.data != nullptr) after = loadVec<1>(hop.s.data, hop.s.type, at);
      if (present) before = loadVec<1>(hop.x.data, hop.x.type, at);
      after.value[0] += sum[part];
      if (hop.prefix != nullptr) storeVec(hop.prefix, hop.stateType, at, before);
      if (hop.total != nullptr) storeVec(hop.total, hop.stateType, at, after);
      if (hop.wire != nullptr) storeVec(hop.wire, hop.wireType, at, after);
    }
  }
}

}  // namespace

cudaError_t launchMatrixHop(const MapShape& shape, const MapHop& hop, cudaStream_t stream) {
  const auto tiles = [](std::size_t length) { return static_cast<unsigned>((length + kTile - 1) / kTile); };
  const std::size_t heads = hop.count / shape.headElements();
  const dim3 grid(tiles(shape.dv), tiles(shape.dk), static_cast<unsigned>(std::min<std::size_t>(heads, kMostZ)));
  return launchKernel(matrixKernel, {grid, dim3(kTile, kRows), 0, stream}, shape, hop);
}

}  // namespace seqpar
