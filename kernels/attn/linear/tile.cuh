// Tiles of rows in shared memory: asynchronous copies from device memory, and addresses for loadMatrices().
#pragma once

#include <cstdint>

namespace seqpar::attn {

__device__ __forceinline__ uint32_t sharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes to shared memory; zeros where not `present`, and then nothing is read.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy4(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(present ? 4 : 0) : "memory");
}
__device__ __forceinline__ void commitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `Pending` of this thread's latest groups are on their way.
template <int Pending>
__device__ __forceinline__ void waitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Rows of `Width` 16-bit numbers without gaps, their 16-byte vectors permuted so that 8 rows are read without
/// conflicts.
template <int Width>
struct Tile {
  static constexpr int kRowBytes = 2 * Width;
  static constexpr int kVectors = kRowBytes / 16;

  /// The byte at which a vector of a row is.
  static __device__ __forceinline__ uint32_t offset(int row, int vector) {
    return static_cast<uint32_t>(row * kRowBytes + ((vector ^ (row & 7)) << 4));
  }
  /// The byte at which a number of a row is.
  static __device__ __forceinline__ uint32_t elementOffset(int row, int column) {
    return offset(row, column >> 3) + static_cast<uint32_t>((column & 7) * 2);
  }

  /// All threads of a CTA: `Rows` rows, of which `rows` are there with `columns` numbers each; the others become zeros.
  template <int Rows, int Threads>
  static __device__ __forceinline__ void load(uint32_t to, const char* from, int64_t rowStride, int rows, int columns) {
#pragma unroll
    for (int i = 0; i < Rows * kVectors / Threads; ++i) {
      const int index = i * Threads + static_cast<int>(threadIdx.x);
      const int row = index / kVectors;
      const int vector = index % kVectors;
      const bool present = row < rows && vector * 8 < columns;
      copy16(to + offset(row, vector), present ? from + row * rowStride + vector * 16 : from, present);
    }
  }

  /// What this lane gives to loadMatrices() for rows [row, row + 16) and columns [column, column + 16): with it
  /// matrices are (upper left, lower left, upper right, lower right), A of the tile.
  static __device__ __forceinline__ uint32_t fragment(int row, int column, int lane) {
    return offset(row + (lane & 15), (column >> 3) + (lane >> 4));
  }
  /// The same with (upper left, upper right, lower left, lower right): for B of the transpose, and with
  /// loadTransposed() A of the transpose.
  static __device__ __forceinline__ uint32_t fragmentAcross(int row, int column, int lane) {
    return offset(row + (lane & 7) + ((lane >> 4) << 3), (column >> 3) + ((lane >> 3) & 1));
  }
};

}  // namespace seqpar::attn
