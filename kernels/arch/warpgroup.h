// Matrix products of a warpgroup, four warps, with operands in shared memory (wgmma.h), and the instructions around
// them; sm_90a.
//
// An operand's rows are 64 elements of 16 bits, 128 bytes; 16-byte unit u of row r is at u ^ (r % 8). Wider matrices
// are panels of such rows. Panels are aligned to 1024 bytes. An accumulator tile of 64 x 8 is one tile of 16 x 8
// (mma.h) in each warp; a warp's rows start at 16 times its index.
#pragma once

#include "kernels/arch/mma.h"
#include "kernels/arch/wgmma.h"

namespace seqpar::warpgroup {

constexpr int kThreads = 128;
constexpr int kSmRegisters = 64 << 10;  ///< registers of an SM: the limit of a CTA's sum over its warpgroups
constexpr int kPanel = 64;              ///< columns of a panel
constexpr int kRowBytes = 2 * kPanel;
constexpr int kGroupBytes = 8 * kRowBytes;  ///< of eight rows: the period of the swizzle

/// An operand in shared memory. `panels` is the stride of its panels in bytes.
struct Operand {
  const void* start = nullptr;
  int panels = 0;
};

/// Storage of an operand relative to the product: its terms are along the rows, or each row is one term.
enum class Terms { AlongRows, Rows };

}  // namespace seqpar::warpgroup

#ifdef __CUDACC__

namespace seqpar::warpgroup {

/// wgmma.fence: orders register accesses before the following products.
SEQPAR_DEVICE void arrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
SEQPAR_DEVICE void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kLeft` groups of products are in flight.
template <int kLeft>
SEQPAR_DEVICE void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
/// Prevents the compiler from reading accumulators before wait().
template <int N>
SEQPAR_DEVICE void fenceOperand(float (&c)[N][4]) {
  SEQPAR_UNROLL
  for (int n = 0; n < N; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[n][e])::"memory");
  }
}
/// fence.proxy.async: publishes earlier ordinary stores to shared memory to products after the next barrier.
SEQPAR_DEVICE void fenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Sets the registers per thread of this warpgroup: fewer, so that others can have more; multiples of 8.
template <int kCount>
SEQPAR_DEVICE void setmaxnregDec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
SEQPAR_DEVICE void setmaxnregInc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
/// A barrier of warpgroup `group`, 0 to 3.
SEQPAR_DEVICE void sync(int group) {
  switch (group) {  // constant ids: otherwise the compiler reserves all sixteen barriers
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

}  // namespace seqpar::warpgroup

#endif

namespace seqpar::warpgroup {

SEQPAR_DEVICE Matrix matrixOf(const Operand& operand) {
  return matrixAt(ptx::sharedAddress(operand.start), operand.panels);
}

/// Accumulators as one array: columns 8 j + 2 p and + 1 of both rows are c[4 j] to c[4 j + 3].
template <int Count>
SEQPAR_DEVICE auto& tilesOf(float (&c)[Count]) {
  return reinterpret_cast<float(&)[Count / 4][4]>(c);
}
template <int Count>
SEQPAR_DEVICE void fenceOperand(float (&c)[Count]) {
  fenceOperand(tilesOf(c));
}

/// Bytes between consecutive steps of 16 terms.
template <Terms kTerms>
SEQPAR_DEVICE int stepOf(int rowsOfPanel, int step) {
  return kTerms == Terms::Rows ? step * 2 * kGroupBytes : step / 4 * rowsOfPanel * kRowBytes + step % 4 * 32;
}

/// c (+)= a b, 16 terms.
template <class T, Terms kA, Terms kB, int N>
SEQPAR_DEVICE void multiply(float (&c)[N][4], Matrix a, Matrix b, bool add) {
  wgmma<ptx::kIsBf16<T>, kA == Terms::Rows ? 1 : 0, kB == Terms::Rows ? 1 : 0>(c, a, b, add);
}
template <class T, Terms kA, Terms kB, int Count>
SEQPAR_DEVICE void multiply(float (&c)[Count], Matrix a, Matrix b, bool add) {
  multiply<T, kA, kB>(tilesOf(c), a, b, add);
}
/// With `a` in registers, in the layout of wgmma.h.
template <class T, Terms kB, int Count>
SEQPAR_DEVICE void multiply(float (&c)[Count], const uint32_t (&a)[4], Matrix b, bool add) {
  wgmma<ptx::kIsBf16<T>, kB == Terms::Rows ? 1 : 0>(tilesOf(c), a, b, add);
}

/// c (+)= a b for kSteps times 16 terms. rowsA, rowsB: rows of a panel, for operands with terms along the rows.
template <class T, Terms kA, Terms kB, int kSteps, int N>
SEQPAR_DEVICE void multiplyAll(float (&c)[N][4], const Operand& a, int rowsA, const Operand& b, int rowsB, bool add) {
  const Matrix startA = matrixOf(a), startB = matrixOf(b);  // an address never leaves shared memory: no carry
  SEQPAR_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    multiply<T, kA, kB>(c, startA + stepOf<kA>(rowsA, step), startB + stepOf<kB>(rowsB, step), add || step > 0);
  }
}

/// One of these steps with its 16 terms of `a` in registers.
template <class T, Terms kB, int N>
SEQPAR_DEVICE void multiplyStep(float (&c)[N][4], const uint32_t (&a)[4], const Operand& b, int rowsB, int step,
                                bool add) {
  wgmma<ptx::kIsBf16<T>, kB == Terms::Rows ? 1 : 0>(c, a, matrixOf(b) + stepOf<kB>(rowsB, step), add);
}

}  // namespace seqpar::warpgroup
