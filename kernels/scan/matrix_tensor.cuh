// The warps of matrix_tensor.h in kernels.
#pragma once

#include "kernels/scan/matrix_tensor.h"

namespace seqpar {

/// A warp of the `Threads` threads that work on a panel.
template <int Threads>
struct CudaWarp {
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x % Threads); }
  static __device__ __forceinline__ bool any(bool mine) { return __any_sync(0xffffffffU, mine) != 0; }
  static __device__ __forceinline__ void multiplyTile(float (&c)[4], const std::uint32_t (&a)[4],
                                                      const std::uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

using CudaTensorProduct = TensorProduct<CudaWarp<kTensorThreads>>;

/// For teams with twice as many threads as the matrices have rows.
template <int Depth, Matrices kind>
using CudaExactProduct = ExactProduct<CudaWarp<2 * Depth>, Depth, kind>;

}  // namespace seqpar
