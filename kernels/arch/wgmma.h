// The instruction wgmma.mma_async (PTX ISA; sm_90a): a warpgroup's D (64 x N, fp32, in registers) (+)= A (64 x 16) B
// (16 x N), of bf16 or fp16; A in shared memory or in registers, B in shared memory. Products are asynchronous;
// multiply() of warpgroup.h selects the instruction.
//
// D as c[j][e]: lane 4 g + p of warp w has rows 16 w + g (e = 0, 1) and 16 w + g + 8 (e = 2, 3), columns 8 j + 2 p and
// + 1. A in registers is D of 16 columns rounded: a[0] row g, columns 2 p, 2 p + 1; a[1] row g + 8; a[2], a[3] columns
// + 8. A state in D can therefore be used as A without leaving the registers.
#pragma once

#include <cstdint>

#include "kernels/arch/device.h"
#ifndef __CUDACC__
#include "kernels/arch/emulator/warpgroup.h"
#endif

namespace seqpar::warpgroup {

/// A matrix in shared memory in the form that tensor cores read: panels of 128-byte rows with swizzled 16-byte units.
struct Matrix {
  uint64_t descriptor;
  /// Advances by `bytes`, within a panel or to another one. An address never leaves shared memory: no carry.
  SEQPAR_DEVICE Matrix operator+(int bytes) const {
    constexpr uint64_t kUpper = ~uint64_t{0} << 32;
    return {(descriptor & kUpper) | (static_cast<uint32_t>(descriptor) + static_cast<uint32_t>(bytes >> 4))};
  }
};
/// PTX ISA, "Asynchronous warpgroup-level matrix shared memory layout", with 128-byte swizzle; `panelBytes` is the
/// stride of panels.
SEQPAR_DEVICE Matrix matrixAt(uint32_t address, int panelBytes) {
  constexpr uint64_t kBetweenEightRows = 1024;
  return {uint64_t{address & 0x3ffffU} >> 4 | static_cast<uint64_t>(panelBytes >> 4) << 16 |
          kBetweenEightRows >> 4 << 32 | uint64_t{1} << 62};
}

#ifdef __CUDACC__

#define SEQPAR_TILE(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define SEQPAR_TILES1(c) SEQPAR_TILE((c)[0])
#define SEQPAR_TILES2(c) SEQPAR_TILE((c)[0]), SEQPAR_TILE((c)[1])
#define SEQPAR_TILES4(c) SEQPAR_TILES2(c), SEQPAR_TILE((c)[2]), SEQPAR_TILE((c)[3])
#define SEQPAR_TILES5(c) SEQPAR_TILES4(c), SEQPAR_TILE((c)[4])
#define SEQPAR_TILES8(c) \
  SEQPAR_TILES4(c), SEQPAR_TILE((c)[4]), SEQPAR_TILE((c)[5]), SEQPAR_TILE((c)[6]), SEQPAR_TILE((c)[7])
#define SEQPAR_TILES10(c) SEQPAR_TILES8(c), SEQPAR_TILE((c)[8]), SEQPAR_TILE((c)[9])
#define SEQPAR_TILES16(c)                                                                                 \
  SEQPAR_TILES8(c), SEQPAR_TILE((c)[8]), SEQPAR_TILE((c)[9]), SEQPAR_TILE((c)[10]), SEQPAR_TILE((c)[11]), \
      SEQPAR_TILE((c)[12]), SEQPAR_TILE((c)[13]), SEQPAR_TILE((c)[14]), SEQPAR_TILE((c)[15])
#define SEQPAR_NAMES1 "{%0,%1,%2,%3}"
#define SEQPAR_NAMES2 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define SEQPAR_NAMES4 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define SEQPAR_NAMES5 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19}"
#define SEQPAR_NAMES8                                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31}"
#define SEQPAR_NAMES10                                                                                  \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39}"
#define SEQPAR_NAMES16                                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"  \
  "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
  "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

/// One instruction; `add` is the index of the operand that selects accumulation into D.
#define SEQPAR_WGMMA(n, type, tiles, operands, add) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" add          \
  ", 0;\n"                                          \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " " SEQPAR_NAMES##tiles ", " operands ";\n}"

#define SEQPAR_A_IN_MEMORY(n, tiles, operands, addAt)                                                             \
  template <bool kBf16, int kTransposeA, int kTransposeB>                                                         \
  SEQPAR_DEVICE void wgmma(float(&c)[tiles][4], Matrix a, Matrix b, bool add) {                                   \
    if constexpr (kBf16) {                                                                                        \
      asm volatile(SEQPAR_WGMMA(n, "bf16", tiles, operands, addAt)                                                \
                   : SEQPAR_TILES##tiles(c)                                                                       \
                   : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(kTransposeA), "n"(kTransposeB)); \
    } else {                                                                                                      \
      asm volatile(SEQPAR_WGMMA(n, "f16", tiles, operands, addAt)                                                 \
                   : SEQPAR_TILES##tiles(c)                                                                       \
                   : "l"(a.descriptor), "l"(b.descriptor), "r"(add ? 1 : 0), "n"(kTransposeA), "n"(kTransposeB)); \
    }                                                                                                             \
  }
SEQPAR_A_IN_MEMORY(8, 1, "%4, %5, p, 1, 1, %7, %8", "6")
SEQPAR_A_IN_MEMORY(16, 2, "%8, %9, p, 1, 1, %11, %12", "10")
SEQPAR_A_IN_MEMORY(32, 4, "%16, %17, p, 1, 1, %19, %20", "18")
SEQPAR_A_IN_MEMORY(40, 5, "%20, %21, p, 1, 1, %23, %24", "22")
SEQPAR_A_IN_MEMORY(64, 8, "%32, %33, p, 1, 1, %35, %36", "34")
SEQPAR_A_IN_MEMORY(80, 10, "%40, %41, p, 1, 1, %43, %44", "42")
SEQPAR_A_IN_MEMORY(128, 16, "%64, %65, p, 1, 1, %67, %68", "66")

#define SEQPAR_A_IN_REGISTERS(n, tiles, operands, addAt)                                              \
  template <bool kBf16, int kTransposeB>                                                              \
  SEQPAR_DEVICE void wgmma(float(&c)[tiles][4], const uint32_t(&a)[4], Matrix b, bool add) {          \
    if constexpr (kBf16) {                                                                            \
      asm volatile(SEQPAR_WGMMA(n, "bf16", tiles, operands, addAt)                                    \
                   : SEQPAR_TILES##tiles(c)                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add ? 1 : 0), \
                     "n"(kTransposeB));                                                               \
    } else {                                                                                          \
      asm volatile(SEQPAR_WGMMA(n, "f16", tiles, operands, addAt)                                     \
                   : SEQPAR_TILES##tiles(c)                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add ? 1 : 0), \
                     "n"(kTransposeB));                                                               \
    }                                                                                                 \
  }
SEQPAR_A_IN_REGISTERS(16, 2, "{%8, %9, %10, %11}, %12, p, 1, 1, %14", "13")
SEQPAR_A_IN_REGISTERS(64, 8, "{%32, %33, %34, %35}, %36, p, 1, 1, %38", "37")
SEQPAR_A_IN_REGISTERS(128, 16, "{%64, %65, %66, %67}, %68, p, 1, 1, %70", "69")

#undef SEQPAR_TILE
#undef SEQPAR_TILES1
#undef SEQPAR_TILES2
#undef SEQPAR_TILES4
#undef SEQPAR_TILES5
#undef SEQPAR_TILES8
#undef SEQPAR_TILES10
#undef SEQPAR_TILES16
#undef SEQPAR_NAMES1
#undef SEQPAR_NAMES2
#undef SEQPAR_NAMES4
#undef SEQPAR_NAMES5
#undef SEQPAR_NAMES8
#undef SEQPAR_NAMES10
#undef SEQPAR_NAMES16
#undef SEQPAR_WGMMA
#undef SEQPAR_A_IN_MEMORY
#undef SEQPAR_A_IN_REGISTERS

#else

template <bool kBf16, int kTransposeA, int kTransposeB, int kTiles>
void wgmma(float (&c)[kTiles][4], Matrix a, Matrix b, bool add) {
  multiplyLater(kBf16, c, kTiles, a.descriptor, kTransposeA != 0, nullptr, b.descriptor, kTransposeB != 0, add);
}
template <bool kBf16, int kTransposeB, int kTiles>
void wgmma(float (&c)[kTiles][4], const uint32_t (&a)[4], Matrix b, bool add) {
  multiplyLater(kBf16, c, kTiles, 0, false, a, b.descriptor, kTransposeB != 0, add);
}

#endif

}  // namespace seqpar::warpgroup
