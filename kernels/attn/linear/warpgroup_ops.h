// Matrix products of a warpgroup, four warps, whose operands are in shared memory (wgmma, sm_90a): what
// kernels/attn/linear/warp_ops.h is for a warp. Compilers other than nvcc get an emulation, in which a product is made
// as late as it may be.
//
// An operand's rows are 64 numbers of 16 bits, 128 bytes, of which 16-byte unit u of row r lies at u ^ (r % 8); wider
// matrices are panels of such rows. All begin at multiples of 1024 bytes. An accumulator tile of 64 x 8 is one of
// 16 x 8 (warp_ops.h) in each warp, its rows 16 times the warp's index further down.
#pragma once

#include "kernels/attn/linear/warp_ops.h"

namespace seqpar::attn::warpgroup {

constexpr int kThreads = 128;
constexpr int kPanel = 64;  ///< columns of a panel
constexpr int kRowBytes = 2 * kPanel;
constexpr int kGroupBytes = 8 * kRowBytes;  ///< of eight rows: the swizzle's period

/// An operand in shared memory. `panels` bytes lie between its panels.
struct Operand {
  const void* start = nullptr;
  int panels = 0;
};

/// How an operand is stored, seen from the product: with its terms along the rows, or one term a row.
enum class Terms { AlongRows, Rows };

}  // namespace seqpar::attn::warpgroup

#ifdef __CUDACC__

namespace seqpar::attn::warpgroup {

#define SEQPAR_TILE(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define SEQPAR_TILES2(c) SEQPAR_TILE((c)[0]), SEQPAR_TILE((c)[1])
#define SEQPAR_TILES4(c) SEQPAR_TILES2(c), SEQPAR_TILE((c)[2]), SEQPAR_TILE((c)[3])
#define SEQPAR_TILES8(c) \
  SEQPAR_TILES4(c), SEQPAR_TILE((c)[4]), SEQPAR_TILE((c)[5]), SEQPAR_TILE((c)[6]), SEQPAR_TILE((c)[7])
#define SEQPAR_TILES16(c)                                                                                 \
  SEQPAR_TILES8(c), SEQPAR_TILE((c)[8]), SEQPAR_TILE((c)[9]), SEQPAR_TILE((c)[10]), SEQPAR_TILE((c)[11]), \
      SEQPAR_TILE((c)[12]), SEQPAR_TILE((c)[13]), SEQPAR_TILE((c)[14]), SEQPAR_TILE((c)[15])
#define SEQPAR_NAMES8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define SEQPAR_NAMES16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define SEQPAR_NAMES32                                                                                  \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31}"
#define SEQPAR_NAMES64                                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"  \
  "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
  "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

/// The matrix descriptor of PTX ISA, "Asynchronous warpgroup-level matrix shared memory layout", with 128-byte swizzle.
__device__ __forceinline__ uint64_t descriptorOf(const Operand& operand) {
  const uint64_t address = warp::sharedAddress(operand.start) & 0x3ffff;
  return address >> 4 | static_cast<uint64_t>(operand.panels >> 4) << 16 |
         static_cast<uint64_t>(kGroupBytes >> 4) << 32 | uint64_t{1} << 62;
}

/// What registers hold goes to the products that follow.
__device__ __forceinline__ void begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most `kLeft` groups of products are under way.
template <int kLeft>
__device__ __forceinline__ void await() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
/// Keeps the compiler from reading accumulators before await().
template <int N>
__device__ __forceinline__ void settle(float (&c)[N][4]) {
  SEQPAR_UNROLL
  for (int n = 0; n < N; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[n][e])::"memory");
  }
}
/// Ordinary stores to shared memory before it are seen by products that begin after the next barrier.
__device__ __forceinline__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// A barrier of warpgroup `group`, 0 to 3.
__device__ __forceinline__ void sync(int group) {
  switch (group) {  // numbers known here: otherwise all sixteen count as used
    case 0:
      asm volatile("bar.sync 1, 128;" ::: "memory");
      break;
    case 1:
      asm volatile("bar.sync 2, 128;" ::: "memory");
      break;
    case 2:
      asm volatile("bar.sync 3, 128;" ::: "memory");
      break;
    default:
      asm volatile("bar.sync 4, 128;" ::: "memory");
  }
}

/// From the descriptor of one step of 16 terms to that of another.
template <Terms kTerms>
__device__ __forceinline__ uint64_t stepOf(int rowsOfPanel, int step) {
  const int bytes = kTerms == Terms::Rows ? step * 2 * kGroupBytes : step / 4 * rowsOfPanel * kRowBytes + step % 4 * 32;
  return static_cast<uint64_t>(bytes >> 4);
}

#define SEQPAR_WGMMA(shape, names, type, left) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" left ", 0;\nwgmma.mma_async.sync.aligned." shape ".f32." type "." type " " names

/// c (+)= a b, 16 terms.
template <class T, Terms kA, Terms kB>
__device__ __forceinline__ void multiply(float (&c)[2][4], uint64_t a, uint64_t b, bool add) {
  constexpr int kLeftRows = kA == Terms::Rows ? 1 : 0, kRightRows = kB == Terms::Rows ? 1 : 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(SEQPAR_WGMMA("m64n16k16", SEQPAR_NAMES8, "bf16", "10") ", %8, %9, p, 1, 1, %11, %12;\n}"
                 : SEQPAR_TILES2(c)
                 : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kLeftRows), "n"(kRightRows));
  } else {
    asm volatile(SEQPAR_WGMMA("m64n16k16", SEQPAR_NAMES8, "f16", "10") ", %8, %9, p, 1, 1, %11, %12;\n}"
                 : SEQPAR_TILES2(c)
                 : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kLeftRows), "n"(kRightRows));
  }
}
template <class T, Terms kA, Terms kB>
__device__ __forceinline__ void multiply(float (&c)[4][4], uint64_t a, uint64_t b, bool add) {
  constexpr int kLeftRows = kA == Terms::Rows ? 1 : 0, kRightRows = kB == Terms::Rows ? 1 : 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(SEQPAR_WGMMA("m64n32k16", SEQPAR_NAMES16, "bf16", "18") ", %16, %17, p, 1, 1, %19, %20;\n}"
                 : SEQPAR_TILES4(c)
                 : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kLeftRows), "n"(kRightRows));
  } else {
    asm volatile(SEQPAR_WGMMA("m64n32k16", SEQPAR_NAMES16, "f16", "18") ", %16, %17, p, 1, 1, %19, %20;\n}"
                 : SEQPAR_TILES4(c)
                 : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kLeftRows), "n"(kRightRows));
  }
}
template <class T, Terms kA, Terms kB>
__device__ __forceinline__ void multiply(float (&c)[8][4], uint64_t a, uint64_t b, bool add) {
  constexpr int kLeftRows = kA == Terms::Rows ? 1 : 0, kRightRows = kB == Terms::Rows ? 1 : 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(SEQPAR_WGMMA("m64n64k16", SEQPAR_NAMES32, "bf16", "34") ", %32, %33, p, 1, 1, %35, %36;\n}"
                 : SEQPAR_TILES8(c)
                 : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kLeftRows), "n"(kRightRows));
  } else {
    asm volatile(SEQPAR_WGMMA("m64n64k16", SEQPAR_NAMES32, "f16", "34") ", %32, %33, p, 1, 1, %35, %36;\n}"
                 : SEQPAR_TILES8(c)
                 : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kLeftRows), "n"(kRightRows));
  }
}
template <class T, Terms kA, Terms kB>
__device__ __forceinline__ void multiply(float (&c)[16][4], uint64_t a, uint64_t b, bool add) {
  constexpr int kLeftRows = kA == Terms::Rows ? 1 : 0, kRightRows = kB == Terms::Rows ? 1 : 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(SEQPAR_WGMMA("m64n128k16", SEQPAR_NAMES64, "bf16", "66") ", %64, %65, p, 1, 1, %67, %68;\n}"
                 : SEQPAR_TILES16(c)
                 : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kLeftRows), "n"(kRightRows));
  } else {
    asm volatile(SEQPAR_WGMMA("m64n128k16", SEQPAR_NAMES64, "f16", "66") ", %64, %65, p, 1, 1, %67, %68;\n}"
                 : SEQPAR_TILES16(c)
                 : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kLeftRows), "n"(kRightRows));
  }
}

/// c (+)= a b for kSteps times 16 terms. Rows of a panel: of an operand whose terms lie along the rows.
template <class T, Terms kA, Terms kB, int kSteps, int N>
__device__ __forceinline__ void multiplyAll(float (&c)[N][4], const Operand& a, int rowsA, const Operand& b, int rowsB,
                                            bool add) {
  const uint64_t startA = descriptorOf(a), startB = descriptorOf(b);  // steps never leave shared memory: no carry
  SEQPAR_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    multiply<T, kA, kB>(c, startA + stepOf<kA>(rowsA, step), startB + stepOf<kB>(rowsB, step), add || step > 0);
  }
}
#undef SEQPAR_TILE
#undef SEQPAR_TILES2
#undef SEQPAR_TILES4
#undef SEQPAR_TILES8
#undef SEQPAR_TILES16
#undef SEQPAR_NAMES8
#undef SEQPAR_NAMES16
#undef SEQPAR_NAMES32
#undef SEQPAR_NAMES64
#undef SEQPAR_WGMMA

}  // namespace seqpar::attn::warpgroup

#else

#include "kernels/attn/linear/warpgroup_emulator.h"

#endif
