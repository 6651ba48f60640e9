// The memory and the threads of channels in a kernel: a lane is a CTA.
#pragma once

#include "channel.h"

namespace seqpar {

struct CudaMemory {
  static SEQPAR_LANE Line load(const Line* from) {
    Line line;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(line.word[0]), "=r"(line.word[1]), "=r"(line.word[2]), "=r"(line.word[3])
                 : "l"(from)
                 : "memory");
    return line;
  }
  static SEQPAR_LANE void store(Line* to, const Line& line) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(line.word[0]), "r"(line.word[1]),
                 "r"(line.word[2]), "r"(line.word[3])
                 : "memory");
  }
  static SEQPAR_LANE void storeIf(bool live, Line* to, const Line& line) {
    asm volatile(
        "{\n .reg .pred live;\n setp.ne.u32 live, %5, 0;\n"
        " @live st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
        "r"(line.word[0]), "r"(line.word[1]), "r"(line.word[2]), "r"(line.word[3]), "r"(live ? 1U : 0U)
        : "memory");
  }
  static SEQPAR_LANE void writeIf(bool live, Line* to, const Line& line) {
    asm volatile(
        "{\n .reg .pred live;\n setp.ne.u32 live, %5, 0;\n"
        " @live st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
        "r"(line.word[0]), "r"(line.word[1]), "r"(line.word[2]), "r"(line.word[3]), "r"(live ? 1U : 0U)
        : "memory");
  }
  static SEQPAR_LANE std::uint32_t load(const std::uint32_t* from) {
    std::uint32_t word;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
  }
  static SEQPAR_LANE void store(std::uint32_t* to, std::uint32_t word) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
  }
  static SEQPAR_LANE std::uint64_t acquire(const std::uint64_t* from) {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  static SEQPAR_LANE void release(std::uint64_t* to, std::uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }
  static SEQPAR_LANE std::uint64_t now() {
    std::uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
  static SEQPAR_LANE std::uint32_t increment(std::uint32_t* counter, std::uint32_t last) {
    std::uint32_t before;
    asm volatile("fence.acq_rel.cta;\n atom.relaxed.cta.shared.inc.u32 %0, [%1], %2;\n fence.acq_rel.cta;"
                 : "=r"(before)
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(counter))), "r"(last)
                 : "memory");
    return before;
  }
  static SEQPAR_LANE void pause() {}
  static SEQPAR_LANE void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
};

/// This thread's warp.
struct CudaWarpGroup {
  static SEQPAR_LANE int thread() { return static_cast<int>(threadIdx.x % 32); }
  static SEQPAR_LANE int threads() { return 32; }
  static SEQPAR_LANE void sync() { __syncwarp(); }
  /// True if any thread brings true.
  static SEQPAR_LANE bool any(bool mine) { return __any_sync(0xffffffffU, mine ? 1 : 0) != 0; }
};

/// All threads of a one-dimensional CTA.
struct CtaGroup {
  static SEQPAR_LANE int thread() { return static_cast<int>(threadIdx.x); }
  static SEQPAR_LANE int threads() { return static_cast<int>(blockDim.x); }
  static SEQPAR_LANE void sync() { __syncthreads(); }
  static SEQPAR_LANE bool any(bool mine) { return __syncthreads_or(mine ? 1 : 0) != 0; }
  static SEQPAR_LANE int warps() { return threads() / 32; }
  static SEQPAR_LANE bool leads() { return threadIdx.x % 32 == 0; }
  static SEQPAR_LANE bool inFirstWarp() { return threadIdx.x < 32; }
  static SEQPAR_LANE CudaWarpGroup warp() { return {}; }
  static SEQPAR_LANE bool warpAll(bool mine) { return __all_sync(0xffffffffU, mine ? 1 : 0) != 0; }
};

}  // namespace seqpar
