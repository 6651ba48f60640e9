// Products of a warpgroup (4 warps, the first a multiple of 4) on the tensor cores of sm_90a: D (64 x N, fp32, in
// registers) += A (64 x 16) B (16 x N), 16-bit numbers, A in registers or shared memory, B in shared memory.
//
// D: lane 4 g + p of warp w has rows 16 w + g and 16 w + g + 8; of columns 8 j + 2 p and + 1: d[4 j] and d[4 j + 1] in
// the first, d[4 j + 2], d[4 j + 3] in the second row. A in registers is D of 16 columns rounded: a[0] row g, columns 2
// p, 2 p + 1; a[1] row g + 8; a[2], a[3] columns + 8. So a state in D becomes A without leaving the registers.
//
// Matrices in shared memory are tiles of tma.cuh (rows of 64 numbers, 128 bytes, swizzled):
// - rowsOf(tile): rows are those of A, or the columns of B; 16 columns further is the product's next step: + 32 bytes.
// - columnsOf(tile): the other way round, rows of the tile are the product's steps (transposed); the next step is + 16
//   rows, 2048 bytes. More than 64 columns are in more than one tile, `tileBytes` apart.
//
// Products are asynchronous: fenceProducts(), products, commitProducts(), waitProducts(); until then nothing may touch
// D or A, and what shared memory they read must stay.
#pragma once

#include <cstdint>

#include "kernels/attn/linear/mma.cuh"

namespace seqpar::attn::hopper {

/// A matrix in shared memory, as the tensor cores take it: address, offsets, swizzle of 128 bytes.
struct Matrix {
  uint64_t descriptor;
  /// `bytes` further; within a tile or to another one.
  __device__ __forceinline__ Matrix operator+(int bytes) const {
    return {descriptor + static_cast<uint64_t>(bytes >> 4)};
  }
};
__device__ __forceinline__ Matrix rowsOf(uint32_t tile) {
  constexpr uint64_t kBetweenEightRows = 1024;
  return {uint64_t{tile & 0x3ffffU} >> 4 | uint64_t{1} << 16 | kBetweenEightRows >> 4 << 32 | uint64_t{1} << 62};
}
__device__ __forceinline__ Matrix columnsOf(uint32_t tile, int tileBytes) {
  constexpr uint64_t kBetweenEightRows = 1024;
  return {uint64_t{tile & 0x3ffffU} >> 4 | static_cast<uint64_t>(tileBytes >> 4) << 16 | kBetweenEightRows >> 4 << 32 |
          uint64_t{1} << 62};
}
constexpr int kNextStepOfRows = 32;       ///< bytes to the next 16 columns of rowsOf(), within a tile of 64
constexpr int kNextStepOfColumns = 2048;  ///< bytes to the next 16 rows of columnsOf()

/// Before the first product of a sequence, after ordinary writes to D or A.
__device__ __forceinline__ void fenceProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most `Pending` of the latest groups are on their way.
template <int Pending>
__device__ __forceinline__ void waitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
/// Keeps the compiler from moving ordinary reads or writes of D across a fence or a wait.
template <int Count>
__device__ __forceinline__ void pin(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// How a matrix lies: Across for columnsOf().
enum class Lie { Along, Across };

/// Products of N columns. `add` false: D is overwritten. D begins at `first` of the array.
template <class T, int N>
struct Product;

template <>
struct Product<Bfloat16, 16> {
  template <Lie B, int First = 0, int Count>
  static __device__ __forceinline__ void run(float (&d)[Count], const uint32_t (&a)[4], Matrix b, bool add) {
    static_assert(First + 8 <= Count);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, {%8, %9, %10, %11}, %12, p, 1, 1, %14;\n}"
        : "+f"(d[First + 0]), "+f"(d[First + 1]), "+f"(d[First + 2]), "+f"(d[First + 3]), "+f"(d[First + 4]),
          "+f"(d[First + 5]), "+f"(d[First + 6]), "+f"(d[First + 7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add ? 1 : 0),
          "n"(B == Lie::Across ? 1 : 0));
  }
  template <Lie A, Lie B, int First = 0, int Count>
  static __device__ __forceinline__ void run(float (&d)[Count], Matrix a, Matrix b, bool add) {
    static_assert(First + 8 <= Count);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, p, 1, 1, %11, %12;\n}"
        : "+f"(d[First + 0]), "+f"(d[First + 1]), "+f"(d[First + 2]), "+f"(d[First + 3]), "+f"(d[First + 4]),
          "+f"(d[First + 5]), "+f"(d[First + 6]), "+f"(d[First + 7])
        : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(A == Lie::Across ? 1 : 0),
          "n"(B == Lie::Across ? 1 : 0));
  }
};

template <>
struct Product<Bfloat16, 64> {
  template <Lie B, int First = 0, int Count>
  static __device__ __forceinline__ void run(float (&d)[Count], const uint32_t (&a)[4], Matrix b, bool add) {
    static_assert(First + 32 <= Count);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
        : "+f"(d[First + 0]), "+f"(d[First + 1]), "+f"(d[First + 2]), "+f"(d[First + 3]), "+f"(d[First + 4]),
          "+f"(d[First + 5]), "+f"(d[First + 6]), "+f"(d[First + 7]), "+f"(d[First + 8]), "+f"(d[First + 9]),
          "+f"(d[First + 10]), "+f"(d[First + 11]), "+f"(d[First + 12]), "+f"(d[First + 13]), "+f"(d[First + 14]),
          "+f"(d[First + 15]), "+f"(d[First + 16]), "+f"(d[First + 17]), "+f"(d[First + 18]), "+f"(d[First + 19]),
          "+f"(d[First + 20]), "+f"(d[First + 21]), "+f"(d[First + 22]), "+f"(d[First + 23]), "+f"(d[First + 24]),
          "+f"(d[First + 25]), "+f"(d[First + 26]), "+f"(d[First + 27]), "+f"(d[First + 28]), "+f"(d[First + 29]),
          "+f"(d[First + 30]), "+f"(d[First + 31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add ? 1 : 0),
          "n"(B == Lie::Across ? 1 : 0));
  }
  template <Lie A, Lie B, int First = 0, int Count>
  static __device__ __forceinline__ void run(float (&d)[Count], Matrix a, Matrix b, bool add) {
    static_assert(First + 32 <= Count);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, %35, %36;\n}"
        : "+f"(d[First + 0]), "+f"(d[First + 1]), "+f"(d[First + 2]), "+f"(d[First + 3]), "+f"(d[First + 4]),
          "+f"(d[First + 5]), "+f"(d[First + 6]), "+f"(d[First + 7]), "+f"(d[First + 8]), "+f"(d[First + 9]),
          "+f"(d[First + 10]), "+f"(d[First + 11]), "+f"(d[First + 12]), "+f"(d[First + 13]), "+f"(d[First + 14]),
          "+f"(d[First + 15]), "+f"(d[First + 16]), "+f"(d[First + 17]), "+f"(d[First + 18]), "+f"(d[First + 19]),
          "+f"(d[First + 20]), "+f"(d[First + 21]), "+f"(d[First + 22]), "+f"(d[First + 23]), "+f"(d[First + 24]),
          "+f"(d[First + 25]), "+f"(d[First + 26]), "+f"(d[First + 27]), "+f"(d[First + 28]), "+f"(d[First + 29]),
          "+f"(d[First + 30]), "+f"(d[First + 31])
        : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(A == Lie::Across ? 1 : 0),
          "n"(B == Lie::Across ? 1 : 0));
  }
};

template <>
struct Product<Bfloat16, 128> {
  template <Lie B, int First = 0, int Count>
  static __device__ __forceinline__ void run(float (&d)[Count], const uint32_t (&a)[4], Matrix b, bool add) {
    static_assert(First + 64 <= Count);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
        : "+f"(d[First + 0]), "+f"(d[First + 1]), "+f"(d[First + 2]), "+f"(d[First + 3]), "+f"(d[First + 4]),
          "+f"(d[First + 5]), "+f"(d[First + 6]), "+f"(d[First + 7]), "+f"(d[First + 8]), "+f"(d[First + 9]),
          "+f"(d[First + 10]), "+f"(d[First + 11]), "+f"(d[First + 12]), "+f"(d[First + 13]), "+f"(d[First + 14]),
          "+f"(d[First + 15]), "+f"(d[First + 16]), "+f"(d[First + 17]), "+f"(d[First + 18]), "+f"(d[First + 19]),
          "+f"(d[First + 20]), "+f"(d[First + 21]), "+f"(d[First + 22]), "+f"(d[First + 23]), "+f"(d[First + 24]),
          "+f"(d[First + 25]), "+f"(d[First + 26]), "+f"(d[First + 27]), "+f"(d[First + 28]), "+f"(d[First + 29]),
          "+f"(d[First + 30]), "+f"(d[First + 31]), "+f"(d[First + 32]), "+f"(d[First + 33]), "+f"(d[First + 34]),
          "+f"(d[First + 35]), "+f"(d[First + 36]), "+f"(d[First + 37]), "+f"(d[First + 38]), "+f"(d[First + 39]),
          "+f"(d[First + 40]), "+f"(d[First + 41]), "+f"(d[First + 42]), "+f"(d[First + 43]), "+f"(d[First + 44]),
          "+f"(d[First + 45]), "+f"(d[First + 46]), "+f"(d[First + 47]), "+f"(d[First + 48]), "+f"(d[First + 49]),
          "+f"(d[First + 50]), "+f"(d[First + 51]), "+f"(d[First + 52]), "+f"(d[First + 53]), "+f"(d[First + 54]),
          "+f"(d[First + 55]), "+f"(d[First + 56]), "+f"(d[First + 57]), "+f"(d[First + 58]), "+f"(d[First + 59]),
          "+f"(d[First + 60]), "+f"(d[First + 61]), "+f"(d[First + 62]), "+f"(d[First + 63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add ? 1 : 0),
          "n"(B == Lie::Across ? 1 : 0));
  }
  template <Lie A, Lie B, int First = 0, int Count>
  static __device__ __forceinline__ void run(float (&d)[Count], Matrix a, Matrix b, bool add) {
    static_assert(First + 64 <= Count);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, %67, %68;\n}"
        : "+f"(d[First + 0]), "+f"(d[First + 1]), "+f"(d[First + 2]), "+f"(d[First + 3]), "+f"(d[First + 4]),
          "+f"(d[First + 5]), "+f"(d[First + 6]), "+f"(d[First + 7]), "+f"(d[First + 8]), "+f"(d[First + 9]),
          "+f"(d[First + 10]), "+f"(d[First + 11]), "+f"(d[First + 12]), "+f"(d[First + 13]), "+f"(d[First + 14]),
          "+f"(d[First + 15]), "+f"(d[First + 16]), "+f"(d[First + 17]), "+f"(d[First + 18]), "+f"(d[First + 19]),
          "+f"(d[First + 20]), "+f"(d[First + 21]), "+f"(d[First + 22]), "+f"(d[First + 23]), "+f"(d[First + 24]),
          "+f"(d[First + 25]), "+f"(d[First + 26]), "+f"(d[First + 27]), "+f"(d[First + 28]), "+f"(d[First + 29]),
          "+f"(d[First + 30]), "+f"(d[First + 31]), "+f"(d[First + 32]), "+f"(d[First + 33]), "+f"(d[First + 34]),
          "+f"(d[First + 35]), "+f"(d[First + 36]), "+f"(d[First + 37]), "+f"(d[First + 38]), "+f"(d[First + 39]),
          "+f"(d[First + 40]), "+f"(d[First + 41]), "+f"(d[First + 42]), "+f"(d[First + 43]), "+f"(d[First + 44]),
          "+f"(d[First + 45]), "+f"(d[First + 46]), "+f"(d[First + 47]), "+f"(d[First + 48]), "+f"(d[First + 49]),
          "+f"(d[First + 50]), "+f"(d[First + 51]), "+f"(d[First + 52]), "+f"(d[First + 53]), "+f"(d[First + 54]),
          "+f"(d[First + 55]), "+f"(d[First + 56]), "+f"(d[First + 57]), "+f"(d[First + 58]), "+f"(d[First + 59]),
          "+f"(d[First + 60]), "+f"(d[First + 61]), "+f"(d[First + 62]), "+f"(d[First + 63])
        : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(A == Lie::Across ? 1 : 0),
          "n"(B == Lie::Across ? 1 : 0));
  }
};

}  // namespace seqpar::attn::hopper
