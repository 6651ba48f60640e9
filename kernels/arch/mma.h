// Tensor-core products of a warp (mma.sync, sm_80 and up) and the loads and stores of their fragments.
//
// Fragments are those of the PTX ISA, "Matrix fragments for mma.m16n8k16". With g = lane / 4 and p = lane % 4:
//   A (16 x 16)  a[0] row g, columns 2p, 2p+1; a[1] row g+8; a[2], a[3] columns + 8
//   B (16 x 8)   b[0] rows 2p, 2p+1, column g; b[1] rows + 8
//   C (16 x 8)   c[0], c[1] row g, columns 2p, 2p+1; c[2], c[3] row g+8
// Rounding alone converts C of X to A of X, and to B of its transpose.
#pragma once

#include <type_traits>

#include "kernels/arch/layout.h"
#include "kernels/arch/ptx.h"

namespace seqpar {

/// 16-bit elements.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

}  // namespace seqpar

namespace seqpar::ptx {

template <class T>
inline constexpr bool kIsBf16 = std::is_same_v<T, Bf16>;

/// Converts two values to T, the first in the lower bits. fp16 saturates: sums of many products may exceed its range.
/// NaN stays NaN.
template <class T>
SEQPAR_DEVICE uint32_t pack(float low, float high) {
  if constexpr (kIsBf16<T>) return floatsToBfloats(low, high);
  const float most = 65504.f;
  return floatsToHalves(clamp(low, most), clamp(high, most));
}
template <class T>
SEQPAR_DEVICE float lowOf(uint32_t both) {
  if constexpr (kIsBf16<T>) return bfloatToFloat(both);
  return halfToFloat(both);
}
template <class T>
SEQPAR_DEVICE float highOf(uint32_t both) {
  if constexpr (kIsBf16<T>) return asFloat(both & 0xffff0000u);
  return halfToFloat(both >> 16);
}

/// sum += 0 * pair, for both elements: NaN if one of `pair` is infinite or NaN.
template <class T>
SEQPAR_DEVICE void addZeros(uint32_t& sum, uint32_t pair) {
#ifdef __CUDACC__
  if constexpr (kIsBf16<T>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0));
  }
#else
  sum = pack<T>(lowOf<T>(sum) + 0 * lowOf<T>(pair), highOf<T>(sum) + 0 * highOf<T>(pair));
#endif
}

}  // namespace seqpar::ptx

#ifdef __CUDACC__

namespace seqpar::ptx {

/// ldmatrix.x4: four 8 x 8 matrices of 16-bit elements; lane i provides the address of row i % 8 of matrix i / 8.
SEQPAR_DEVICE void ldmatrixX4(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
SEQPAR_DEVICE void ldmatrixX4(uint32_t (&to)[4], const void* row) {
  ldmatrixX4(to, sharedAddress(row));
}
SEQPAR_DEVICE void ldmatrixX4Trans(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
SEQPAR_DEVICE void ldmatrixX4Trans(uint32_t (&to)[4], const void* row) {
  ldmatrixX4Trans(to, sharedAddress(row));
}
/// stmatrix.x4, the reverse of ldmatrixX4(); sm_90 and up.
SEQPAR_DEVICE void stmatrixX4(uint32_t row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}
SEQPAR_DEVICE void stmatrixX4(void* row, const uint32_t (&from)[4]) {
  stmatrixX4(sharedAddress(row), from);
}
SEQPAR_DEVICE void stmatrixX4Trans(uint32_t row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}
/// movmatrix.trans: the transpose of an 8 x 8 matrix that the warp holds.
SEQPAR_DEVICE uint32_t movmatrixTrans(uint32_t pair) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

/// mma.m16n8k16: c += a b for a tile of 16 x 8 and 16 terms.
template <class T>
SEQPAR_DEVICE void mmaM16N8K16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kIsBf16<T>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
/// cvt.rna.tf32: the nearest TF32 number. NaN stays NaN.
SEQPAR_DEVICE uint32_t roundToTf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}
/// mma.m16n8k8: c += a b for 16 x 8 and 8 terms, in TF32, which reads the upper 19 bits. a: rows g, g+8 of term p, then
/// of term p+4; b: column g of terms p and p+4.
SEQPAR_DEVICE void mmaM16N8K8Tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace seqpar::ptx

#else

namespace seqpar::ptx {

inline uint32_t roundToTf32(float value) {
  const uint32_t bits = asBits(value);
  return (bits & 0x7fffffffU) > 0x7f800000U ? bits : (bits + 0x1000U) & 0xffffe000U;
}
template <class T>
void mmaM16N8K16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mmaM16N8K16Of(kIsBf16<T>, c, a, b0, b1);
}

}  // namespace seqpar::ptx

#endif
