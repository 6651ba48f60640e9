// Memory and thread groups of byte FIFOs in a kernel: a channel is a CTA.
#pragma once

#include "kernels/byte_fifo.h"
#include "kernels/fifo_cuda.cuh"

namespace seqpar {

struct ByteFifoMemory : CudaMemory {
  static SEQPAR_DEVICE Vec16 loadPacket(const Vec16* from) {
    // Type b128: in the memory model, the elements of a vector access are separate accesses.
    std::uint64_t low, high;
    asm volatile("{\n .reg .b128 packet;\n ld.relaxed.sys.global.b128 packet, [%2];\n mov.b128 {%0, %1}, packet;\n}"
                 : "=l"(low), "=l"(high)
                 : "l"(from)
                 : "memory");
    return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
            static_cast<std::uint32_t>(high >> 32)};
  }
  static SEQPAR_DEVICE void storePacket(Vec16* to, const Vec16& packet) {
    asm volatile(
        "{\n .reg .b128 packet;\n .reg .b64 low, high;\n mov.b64 low, {%1, %2};\n mov.b64 high, {%3, %4};\n"
        " mov.b128 packet, {low, high};\n st.relaxed.sys.global.b128 [%0], packet;\n}" ::"l"(to),
        "r"(packet.x), "r"(packet.y), "r"(packet.z), "r"(packet.w)
        : "memory");
  }
  static SEQPAR_DEVICE std::uint64_t poll(const std::uint64_t* from) {
    std::uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  static SEQPAR_DEVICE void tell(std::uint64_t* to, std::uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }
};

/// This thread's warp in the CTA; the shuffle tells the compiler that the value is warp-uniform.
SEQPAR_DEVICE int warpNumber() {
  return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 32), 0);
}

/// Threads of a CTA that work together: whole warps that use named barrier `id`.
class WarpsGroup {
 public:
  static constexpr int kShare = 1;  ///< payloads in one thread's bookkeeping: there are fewer than 32

  __device__ WarpsGroup(int id, int firstWarp, int warps) : id_(id), first_(firstWarp), warps_(warps) {}
  SEQPAR_DEVICE int warps() const { return warps_; }
  SEQPAR_DEVICE int warp() const { return warpNumber() - first_; }
  SEQPAR_DEVICE int thread() const { return static_cast<int>(threadIdx.x) - first_ * 32; }
  SEQPAR_DEVICE int threads() const { return warps_ * 32; }
  /// Barrier; returns true if `mine` is true on any thread.
  SEQPAR_DEVICE bool any(bool mine) const {
    int result;
    asm volatile(
        "{\n .reg .pred in, out;\n setp.ne.s32 in, %3, 0;\n barrier.cta.red.or.pred out, %1, %2, in;\n"
        " selp.s32 %0, 1, 0, out;\n}"
        : "=r"(result)
        : "r"(id_), "r"(threads()), "r"(mine ? 1 : 0)
        : "memory");
    return result != 0;
  }
  /// work(t) for t from 0 to 31, by the threads of this warp.
  template <class Work>
  SEQPAR_DEVICE void forEach32(const Work& work) const {
    work(static_cast<std::uint32_t>(threadIdx.x % 32));
  }

 private:
  int id_, first_, warps_;
};

}  // namespace seqpar
