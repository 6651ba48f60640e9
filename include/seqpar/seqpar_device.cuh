/*
 * seqpar/seqpar_device.cuh - All-Scan from inside kernels, for CUDA C++17 and newer (nvcc).
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A kernel that makes states can pass them along the ranks itself, a head as soon as it is there, instead of writing
 * all of them for a collective that comes later. In each scan every rank does, for each head h and in this order,
 *
 *     x_h from the position before it     waitHead()      zeros at position 0
 *     total_h = A_h x_h + S_h             the kernel's own arithmetic
 *     total_h to the position after it    publishHead()   nothing at the last position
 *
 * or all three in one by passHead(), which keeps the numbers in registers and passes each packet on at once: the lowest
 * latency where the state's elements do not mix (SUM, SCALAR and DIAG).
 *
 * All functions are called by all threads of a block together, and begin and end with a barrier of the block. Which
 * block has which head is the caller's choice; a head belongs to one block at a time, and different blocks work on
 * different heads at the same time. A block that waits occupies its SM, so ranks should take the heads in the same
 * order: blocks that are started first wait for what is published first. publishHead() waits only until the next
 * position has taken the head two scans ago.
 *
 * They return false, on all threads of the block, when a rank has failed or did not answer in time. Nothing that the
 * kernel computes after that may be used; what it still publishes is not sent.
 */
#ifndef SEQPAR_SEQPAR_DEVICE_CUH_
#define SEQPAR_SEQPAR_DEVICE_CUH_

#include "scan_device.h"

namespace seqpar {
namespace device {

/** What follows is the library's own; the functions to use are at the end of the file. */
namespace detail {

/* A packet is 16 bytes, a Lamport packet: its arrival is in the data, since a word of kAbsent is not there yet. The
   receiver puts packets back to kAbsent and gives credit to the sender; there are two sets of packets, for scans of
   even and of odd numbers. */
constexpr uint32_t kAbsent = 0xffffffffU;
constexpr uint32_t kNan = 0x7fffffffU; /* sent in place of a number that looks like kAbsent */
constexpr uint32_t kPolls = 2048;      /* between looks at the clock and at host memory */
constexpr uint64_t kSets = 2;

struct Counts {
  uint64_t received, sent; /* of one head */
};

__device__ inline uint4 loadPacket(const uint4* from) {
  uint4 packet;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.x), "=r"(packet.y), "=r"(packet.z), "=r"(packet.w)
               : "l"(from)
               : "memory");
  return packet;
}
__device__ inline void storePacket(uint4* to, uint4 packet) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(packet.x), "r"(packet.y),
               "r"(packet.z), "r"(packet.w)
               : "memory");
}
__device__ inline bool complete(uint4 packet) {
  return packet.x != kAbsent && packet.y != kAbsent && packet.z != kAbsent && packet.w != kAbsent;
}
__device__ inline uint32_t sendable(float number) {
  const uint32_t bits = __float_as_uint(number);
  return bits == kAbsent ? kNan : bits;
}

__device__ inline unsigned threadOfBlock() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ inline unsigned threadsOfBlock() {
  return blockDim.x * blockDim.y * blockDim.z;
}

/* One head, as one block has it in one scan. */
class Head {
 public:
  __device__ Head(const seqparScanDevice_t& scan, int64_t head) : scan_(scan), head_(head) {
    const volatile Counts& counts = *countsOf();
    received_ = counts.received;
    sent_ = counts.sent;
  }
  /* Another head of the same scan, while none of them has been counted. */
  __device__ Head(const Head& other, int64_t head)
      : scan_(other.scan_), head_(head), received_(other.received_), sent_(other.sent_) {}

  __device__ bool first() const { return scan_.position == 0; }
  __device__ bool last() const { return scan_.position + 1 == scan_.positions; }
  __device__ uint64_t packets() const { return (static_cast<uint64_t>(scan_.elements) + 3) / 4; }

  /* Waits until the packets to the next position are free. For one thread. False: timed out or aborted. */
  __device__ bool waitForRoom() const {
    if (last() || sent_ < kSets) return true;
    const uint64_t* const credit = static_cast<const uint64_t*>(scan_.creditIn) + head_;
    uint64_t start = 0, number = 0;
    for (uint32_t polls = 1;; ++polls) {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(number) : "l"(credit) : "memory");
      if (number + kSets > sent_) return true;
      if (polls % kPolls == 0 && timedOut(start, scan_.after)) return false;
    }
  }

  __device__ uint4 load(uint64_t packet) const { return loadPacket(inbox() + packet); }
  /* Waits for a packet, of which `seen` is what load() gave. False: timed out or aborted. */
  __device__ bool await(uint64_t packet, uint4& seen) const {
    uint64_t start = 0;
    for (uint32_t polls = 1; !complete(seen); ++polls) {
      if (polls % kPolls == 0 && timedOut(start, scan_.before)) return false;
      seen = load(packet);
    }
    return true;
  }
  /* The same, and resets it. */
  __device__ bool take(uint64_t packet, uint4& seen) const {
    if (!await(packet, seen)) return false;
    storePacket(inbox() + packet, make_uint4(kAbsent, kAbsent, kAbsent, kAbsent));
    return true;
  }
  __device__ void put(uint64_t packet, const float (&numbers)[4]) const {
    uint4* const to = static_cast<uint4*>(scan_.outbox) + (sent_ % kSets * scan_.heads + head_) * packets() + packet;
    storePacket(to, make_uint4(sendable(numbers[0]), sendable(numbers[1]), sendable(numbers[2]), sendable(numbers[3])));
  }

  /* For one thread, after a barrier that follows the last take(). */
  __device__ void countReceived() const {
    countsOf()->received = received_ + 1;
    if (first()) return;
    uint64_t* const credit = static_cast<uint64_t*>(scan_.creditOut) + head_;
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(credit), "l"(received_ + 1) : "memory");
  }
  __device__ void countSent() const { countsOf()->sent = sent_ + 1; }

  /* Of all heads: a wait has ended in vain. */
  __device__ bool stopped() const { return *stopWord() != 0; }
  __device__ void stop() const { *stopWord() = 1; }

 private:
  /* Counts of all heads, then the word that stops everything. */
  __device__ Counts* countsOf() const { return static_cast<Counts*>(scan_.counts) + head_; }
  __device__ volatile uint32_t* stopWord() const {
    return reinterpret_cast<volatile uint32_t*>(static_cast<Counts*>(scan_.counts) + scan_.heads);
  }
  __device__ uint4* inbox() const {
    return static_cast<uint4*>(scan_.inbox) + (received_ % kSets * scan_.heads + head_) * packets();
  }

  __device__ bool timedOut(uint64_t& start, int peer) const {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (start == 0) start = now;
    const bool over = scan_.timeoutNs != 0 && now - start > scan_.timeoutNs;
    if (!over && *static_cast<const volatile uint32_t*>(scan_.abortWord) == 0) return false;
    *static_cast<volatile uint32_t*>(scan_.timedOutWord) = 1U + static_cast<uint32_t>(peer);
    return true;
  }

  const seqparScanDevice_t& scan_;
  int64_t head_;
  uint64_t received_, sent_;
};

/* Steps through a head's packets, as many at once as are in flight: act(first element of the packet, x), which returns
   what is put where `sends`. */
template <bool Receives, bool Sends, class Act>
__device__ inline bool run(const seqparScanDevice_t& scan, int64_t number, const Act& act) {
  constexpr unsigned kInFlight = 4;
  const Head head(scan, number);
  const bool receives = Receives && !head.first();
  const bool sends = Sends && !head.last();
  const bool leader = threadOfBlock() == 0;
  bool timedOut = leader && (head.stopped() || (sends && !head.waitForRoom()));
  if (__syncthreads_or(timedOut)) {
    if (leader) head.stop();
    return false;
  }
  const unsigned threads = threadsOfBlock();
  const uint64_t packets = head.packets();
  for (uint64_t begin = threadOfBlock(); begin < packets && !timedOut; begin += uint64_t{kInFlight} * threads) {
    uint4 seen[kInFlight];
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) {
      if (receives && begin + i * threads < packets) seen[i] = head.load(begin + i * threads);
    }
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) {
      const uint64_t packet = begin + i * threads;
      if (packet >= packets || timedOut) continue;
      float4 x = make_float4(0, 0, 0, 0);
      if (receives) {
        timedOut = !head.take(packet, seen[i]);
        if (timedOut) continue;
        x = make_float4(__uint_as_float(seen[i].x), __uint_as_float(seen[i].y), __uint_as_float(seen[i].z),
                        __uint_as_float(seen[i].w));
      }
      const float4 out = act(4 * static_cast<int64_t>(packet), x);
      const float numbers[4] = {out.x, out.y, out.z, out.w};
      if (sends) head.put(packet, numbers);
    }
  }
  timedOut = __syncthreads_or(timedOut) != 0;
  if (leader) {
    if (timedOut) head.stop();
    if (!timedOut && Receives) head.countReceived();
    if (!timedOut && Sends) head.countSent();
  }
  return !timedOut;
}

}  // namespace detail

/**
 * Waits for x of `head` and writes it to `destination`, [elements] in shared or global memory, where all threads of the
 * block see it. Position 0 gets zeros.
 */
__device__ inline bool waitHead(const seqparScanDevice_t& scan, int64_t head, float* destination) {
  return detail::run<true, false>(scan, head, [&](int64_t element, float4 x) {
    const float numbers[4] = {x.x, x.y, x.z, x.w};
    for (int i = 0; i < 4; ++i) {
      if (element + i < scan.elements) destination[element + i] = numbers[i];
    }
    return x;
  });
}

/** Sends `source`, [elements] that threads of the block have written to shared or global memory, as total of `head`. */
__device__ inline bool publishHead(const seqparScanDevice_t& scan, int64_t head, const float* source) {
  return detail::run<false, true>(scan, head, [&](int64_t element, float4) {
    float numbers[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4; ++i) {
      if (element + i < scan.elements) numbers[i] = source[element + i];
    }
    return make_float4(numbers[0], numbers[1], numbers[2], numbers[3]);
  });
}

/**
 * waitHead(), the kernel's arithmetic and publishHead() in one: calls step(element, x) once for every four elements
 * from `element` on (a multiple of 4), on some thread of the block, and sends the float4 that it returns at once. What
 * is beyond the last element comes as zeros and is not looked at. At position 0 x is zeros; what the last position's
 * step returns goes nowhere, so a state that is wanted is stored by `step` itself.
 */
template <class Step>
__device__ inline bool passHead(const seqparScanDevice_t& scan, int64_t head, const Step& step) {
  return detail::run<true, true>(scan, head, step);
}

}  // namespace device
}  // namespace seqpar

#endif /* SEQPAR_SEQPAR_DEVICE_CUH_ */
