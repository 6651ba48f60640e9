// The warps of matrix_tensor.h in kernels.
#pragma once

#include "kernels/arch/mma.h"
#include "kernels/scan/matrix_tensor.h"

namespace seqpar {

/// A warp of the `Threads` threads that work on a panel.
template <int Threads>
struct CudaWarp {
  static SEQPAR_DEVICE int thread() { return static_cast<int>(threadIdx.x % Threads); }
  static SEQPAR_DEVICE bool any(bool mine) { return __any_sync(0xffffffffU, mine) != 0; }
  static SEQPAR_DEVICE void multiplyTile(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    ptx::mmaM16N8K8Tf32(c, a, b[0], b[1]);
  }
};

using CudaTensorProduct = TensorProduct<CudaWarp<kTensorThreads>>;

/// For teams with twice as many threads as the matrices have rows.
template <int Depth, Matrices kind>
using CudaExactProduct = ExactProduct<CudaWarp<2 * Depth>, Depth, kind>;

}  // namespace seqpar
