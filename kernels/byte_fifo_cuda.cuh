// Memory and thread groups of byte FIFOs in a kernel: a channel is a CTA.
#pragma once

#include "kernels/byte_fifo.h"
#include "kernels/fifo_cuda.cuh"

namespace seqpar {

struct ByteFifoMemory : CudaMemory {
  static SEQPAR_DEVICE Vec16 loadPacket(const Vec16* from) {
    std::uint64_t low, high;
    ptx::ldRelaxedSysB128(low, high, from);
    return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
            static_cast<std::uint32_t>(high >> 32)};
  }
  static SEQPAR_DEVICE void storePacket(Vec16* to, const Vec16& packet) {
    ptx::stRelaxedSysB128(to, packet.x, packet.y, packet.z, packet.w);
  }
  static SEQPAR_DEVICE std::uint64_t poll(const std::uint64_t* from) { return ptx::ldRelaxedSys(from); }
  static SEQPAR_DEVICE void tell(std::uint64_t* to, std::uint64_t value) { ptx::stRelaxedSys(to, value); }
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
  SEQPAR_DEVICE bool any(bool mine) const { return ptx::barrierRedOr(id_, threads(), mine); }
  /// work(t) for t from 0 to 31, by the threads of this warp.
  template <class Work>
  SEQPAR_DEVICE void forEach32(const Work& work) const {
    work(static_cast<std::uint32_t>(threadIdx.x % 32));
  }

 private:
  int id_, first_, warps_;
};

}  // namespace seqpar
