// Memory and thread groups of FIFOs in a kernel: a channel is a CTA.
#pragma once

#include "kernels/arch/system_memory.h"
#include "kernels/fifo.h"

namespace seqpar {

struct CudaMemory {
  static SEQPAR_DEVICE LamportPacket load(const LamportPacket* from) {
    LamportPacket packet;
    ptx::ldRelaxedSys(packet.word, from);
    return packet;
  }
  static SEQPAR_DEVICE void store(LamportPacket* to, const LamportPacket& packet) {
    ptx::stRelaxedSys(to, packet.word);
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
  static SEQPAR_DEVICE std::uint32_t load(const std::uint32_t* from) { return ptx::ldRelaxedSys(from); }
  static SEQPAR_DEVICE void store(std::uint32_t* to, std::uint32_t word) { ptx::stRelaxedSys(to, word); }
  static SEQPAR_DEVICE std::uint64_t acquire(const std::uint64_t* from) { return ptx::ldAcquireSys(from); }
  static SEQPAR_DEVICE void release(std::uint64_t* to, std::uint64_t value) { ptx::stReleaseSys(to, value); }
  static SEQPAR_DEVICE std::uint64_t now() { return ptx::globaltimer(); }
  static SEQPAR_DEVICE std::uint32_t increment(std::uint32_t* counter, std::uint32_t last) {
    return ptx::atomIncSharedAcqRel(counter, last);
  }
  static SEQPAR_DEVICE void pause() {}
  static SEQPAR_DEVICE void prefetch(const void* from) { ptx::prefetch(from); }
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
