// mbarrier: barriers in shared memory, 8 bytes each, sm_90. A phase ends when `count` threads have arrived and all
// expected bytes are transferred. Phases are identified by their parity; the first one has parity 0.
#pragma once

#include "kernels/arch/ptx.h"

#ifdef __CUDACC__

namespace seqpar::ptx {

SEQPAR_DEVICE void mbarrierInit(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// fence.mbarrier_init: required after mbarrierInit(), before other threads and the TMA use the barriers.
SEQPAR_DEVICE void fenceMbarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
SEQPAR_DEVICE void mbarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives and adds to the bytes that the TMA will transfer.
SEQPAR_DEVICE void mbarrierArriveExpectTx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// mbarrier.try_wait.parity until the phase of that parity has ended.
SEQPAR_DEVICE void mbarrierWaitParity(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace seqpar::ptx

#else

#include "kernels/arch/emulator/tma.h"

#endif
