// Memory and thread groups of FIFOs in a kernel: a channel is a CTA.
#pragma once

#include "kernels/fifo.h"

namespace seqpar {

struct CudaMemory {
  static SEQPAR_DEVICE LamportPacket load(const LamportPacket* from) {
    LamportPacket packet;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3])
                 : "l"(from)
                 : "memory");
    return packet;
  }
  static SEQPAR_DEVICE void store(LamportPacket* to, const LamportPacket& packet) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(packet.word[0]),
                 "r"(packet.word[1]), "r"(packet.word[2]), "r"(packet.word[3])
                 : "memory");
  }
  static SEQPAR_DEVICE void storeIf(bool live, LamportPacket* to, const LamportPacket& packet) {
    asm volatile(
        "{\n .reg .pred live;\n setp.ne.u32 live, %5, 0;\n"
        " @live st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
        "r"(packet.word[0]), "r"(packet.word[1]), "r"(packet.word[2]), "r"(packet.word[3]), "r"(live ? 1U : 0U)
        : "memory");
  }
  static SEQPAR_DEVICE void writeIf(bool live, LamportPacket* to, const LamportPacket& packet) {
    asm volatile(
        "{\n .reg .pred live;\n setp.ne.u32 live, %5, 0;\n"
        " @live st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
        "r"(packet.word[0]), "r"(packet.word[1]), "r"(packet.word[2]), "r"(packet.word[3]), "r"(live ? 1U : 0U)
        : "memory");
  }
  static SEQPAR_DEVICE std::uint32_t load(const std::uint32_t* from) {
    std::uint32_t word;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
  }
  static SEQPAR_DEVICE void store(std::uint32_t* to, std::uint32_t word) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
  }
  static SEQPAR_DEVICE std::uint64_t acquire(const std::uint64_t* from) {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  static SEQPAR_DEVICE void release(std::uint64_t* to, std::uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }
  static SEQPAR_DEVICE std::uint64_t now() {
    std::uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
  static SEQPAR_DEVICE std::uint32_t increment(std::uint32_t* counter, std::uint32_t last) {
    std::uint32_t before;
    asm volatile("fence.acq_rel.cta;\n atom.relaxed.cta.shared.inc.u32 %0, [%1], %2;\n fence.acq_rel.cta;"
                 : "=r"(before)
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(counter))), "r"(last)
                 : "memory");
    return before;
  }
  static SEQPAR_DEVICE void pause() {}
  static SEQPAR_DEVICE void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
};

/// This thread's warp.
struct CudaWarpGroup {
  static SEQPAR_DEVICE int thread() { return static_cast<int>(threadIdx.x % 32); }
  static SEQPAR_DEVICE int threads() { return 32; }
  static SEQPAR_DEVICE void sync() { __syncwarp(); }
  /// Returns true if `mine` is true on any thread.
  static SEQPAR_DEVICE bool any(bool mine) { return __any_sync(0xffffffffU, mine ? 1 : 0) != 0; }
};

/// All threads of a one-dimensional CTA.
struct CtaGroup {
  static SEQPAR_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
  static SEQPAR_DEVICE int threads() { return static_cast<int>(blockDim.x); }
  static SEQPAR_DEVICE void sync() { __syncthreads(); }
  static SEQPAR_DEVICE bool any(bool mine) { return __syncthreads_or(mine ? 1 : 0) != 0; }
  static SEQPAR_DEVICE int warps() { return threads() / 32; }
  static SEQPAR_DEVICE bool leads() { return threadIdx.x % 32 == 0; }
  static SEQPAR_DEVICE bool inFirstWarp() { return threadIdx.x < 32; }
  static SEQPAR_DEVICE CudaWarpGroup warp() { return {}; }
  static SEQPAR_DEVICE bool warpAll(bool mine) { return __all_sync(0xffffffffU, mine ? 1 : 0) != 0; }
};

}  // namespace seqpar
