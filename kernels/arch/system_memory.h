// Accesses to memory that other GPUs and hosts access at the same time: loads and stores of system scope (PTX memory
// model), CUDA only.
#pragma once

#include "kernels/arch/device.h"
#include "kernels/arch/ptx.h"

namespace seqpar::ptx {

/// ld.relaxed.sys.v4: in the memory model, the elements of a vector access are separate accesses.
SEQPAR_DEVICE void ldRelaxedSys(uint32_t (&words)[4], const void* from) {
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(from)
               : "memory");
}
SEQPAR_DEVICE void stRelaxedSys(void* to, const uint32_t (&words)[4]) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}
/// ld.relaxed.sys.b128: one access of 16 bytes.
SEQPAR_DEVICE void ldRelaxedSysB128(uint64_t& low, uint64_t& high, const void* from) {
  asm volatile("{\n .reg .b128 packet;\n ld.relaxed.sys.global.b128 packet, [%2];\n mov.b128 {%0, %1}, packet;\n}"
               : "=l"(low), "=l"(high)
               : "l"(from)
               : "memory");
}
SEQPAR_DEVICE void stRelaxedSysB128(void* to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile(
      "{\n .reg .b128 packet;\n .reg .b64 low, high;\n mov.b64 low, {%1, %2};\n mov.b64 high, {%3, %4};\n"
      " mov.b128 packet, {low, high};\n st.relaxed.sys.global.b128 [%0], packet;\n}" ::"l"(to),
      "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

SEQPAR_DEVICE uint32_t ldRelaxedSys(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
SEQPAR_DEVICE void stRelaxedSys(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
SEQPAR_DEVICE uint64_t ldRelaxedSys(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
SEQPAR_DEVICE void stRelaxedSys(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
SEQPAR_DEVICE uint64_t ldAcquireSys(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
SEQPAR_DEVICE void stReleaseSys(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

/// atom.inc of a counter in shared memory, acquire and release within the CTA; returns the value before.
SEQPAR_DEVICE uint32_t atomIncSharedAcqRel(uint32_t* counter, uint32_t last) {
  uint32_t before;
  asm volatile("fence.acq_rel.cta;\n atom.relaxed.cta.shared.inc.u32 %0, [%1], %2;\n fence.acq_rel.cta;"
               : "=r"(before)
               : "r"(sharedAddress(counter)), "r"(last)
               : "memory");
  return before;
}
/// Nanoseconds.
SEQPAR_DEVICE uint64_t globaltimer() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace seqpar::ptx
