/*
 * seqpar/seqpar_device.cuh - All-Scan inside kernels, for CUDA C++17 and newer (nvcc).
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A kernel that computes states can pass them along the ranks itself, each head as soon as it is complete, instead of
 * writing all heads for a later collective. In each scan every rank runs, for each head h and in this order,
 *
 *     x_h from the previous position      waitHead()      zeros at position 0
 *     total_h = A_h x_h + S_h             the kernel's arithmetic
 *     total_h to the next position        publishHead()   no effect at the last position
 *
 * or all three together with passHead(), which keeps the elements in registers and forwards each packet immediately:
 * the lowest latency for element-wise transitions (SUM, SCALAR and DIAG).
 *
 * All threads of a block call each function together; it starts and ends with a block barrier. The caller assigns heads
 * to blocks; a head belongs to one block at a time, and different blocks process different heads concurrently. A
 * waiting block occupies its SM, so ranks should process the heads in the same order: blocks that start first wait for
 * the heads that are published first. publishHead() waits only until the next position has consumed the head of the
 * scan before the last.
 *
 * The functions return false, on all threads of the block, if a rank has failed or did not respond in time. The kernel
 * must not use its later results; anything that it still publishes is not sent.
 */
#ifndef SEQPAR_SEQPAR_DEVICE_CUH_
#define SEQPAR_SEQPAR_DEVICE_CUH_

#include "scan_device.h"

namespace seqpar {
namespace device {

/** Internal; the public functions are at the end of the file. */
namespace detail {

/*
 * A Lamport packet of 16 bytes: arrival is encoded in the data; a word equal to kAbsent has not arrived. The receiver
 * resets packets to kAbsent and gives credit to the sender. Two sets of packets alternate between even and odd scans.
 */
constexpr uint32_t kAbsent = 0xffffffffU;
constexpr uint32_t kNan = 0x7fffffffU; /* replaces an element with the bits of kAbsent */
constexpr uint32_t kPolls = 2048;      /* polls between reads of the clock and of host memory */
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

/* One head of one scan in one block. */
class Head {
 public:
  __device__ Head(const seqparScanDevice_t& scan, int64_t head) : scan_(scan), head_(head) {
    const volatile Counts& counts = *countsOf();
    received_ = counts.received;
    sent_ = counts.sent;
  }
  /* Another head of the same scan, before any of them has been counted. */
  __device__ Head(const Head& other, int64_t head)
      : scan_(other.scan_), head_(head), received_(other.received_), sent_(other.sent_) {}

  __device__ bool first() const { return scan_.position == 0; }
  __device__ bool last() const { return scan_.position + 1 == scan_.positions; }
  __device__ uint64_t packets() const { return (static_cast<uint64_t>(scan_.elements) + 3) / 4; }

  /* Waits until the packets to the next position are free. Called by one thread. False: timed out or aborted. */
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
  /* Waits for a packet; `seen` is the result of load(). False: timed out or aborted. */
  __device__ bool await(uint64_t packet, uint4& seen) const {
    uint64_t start = 0;
    for (uint32_t polls = 1; !complete(seen); ++polls) {
      if (polls % kPolls == 0 && timedOut(start, scan_.before)) return false;
      seen = load(packet);
    }
    return true;
  }
  /* Like await(), then resets the packet. */
  __device__ bool take(uint64_t packet, uint4& seen) const {
    if (!await(packet, seen)) return false;
    storePacket(inbox() + packet, make_uint4(kAbsent, kAbsent, kAbsent, kAbsent));
    return true;
  }
  __device__ void put(uint64_t packet, const float (&numbers)[4]) const {
    uint4* const to = static_cast<uint4*>(scan_.outbox) + (sent_ % kSets * scan_.heads + head_) * packets() + packet;
    storePacket(to, make_uint4(sendable(numbers[0]), sendable(numbers[1]), sendable(numbers[2]), sendable(numbers[3])));
  }

  /* Called by one thread, after a barrier that follows the last take(). */
  __device__ void countReceived() const {
    countsOf()->received = received_ + 1;
    if (first()) return;
    uint64_t* const credit = static_cast<uint64_t*>(scan_.creditOut) + head_;
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(credit), "l"(received_ + 1) : "memory");
  }
  __device__ void countSent() const { countsOf()->sent = sent_ + 1; }

  /* For all heads: a wait has timed out or was aborted. */
  __device__ bool stopped() const { return *stopWord() != 0; }
  __device__ void stop() const { *stopWord() = 1; }

 private:
  /* Counts of all heads, followed by the stop word. */
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

/*
 * Processes a head's packets, several in flight: act(first element of the packet, x) returns the data to send if
 * `sends`.
 */
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
 * Waits for x of `head` and writes it to `destination`, [elements] in shared or global memory, visible to all threads
 * of the block. Position 0 receives zeros.
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

/** Sends `source`, [elements] in shared or global memory written by threads of the block, as total of `head`. */
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
 * starting at `element` (a multiple of 4), on some thread of the block, and sends the returned float4 immediately.
 * Elements beyond the last one are zeros and their results are ignored. At position 0 x is zeros. The results of the
 * last position are not sent, so `step` itself stores a state that is needed.
 */
template <class Step>
__device__ inline bool passHead(const seqparScanDevice_t& scan, int64_t head, const Step& step) {
  return detail::run<true, true>(scan, head, step);
}

}  // namespace device
}  // namespace seqpar

#endif /* SEQPAR_SEQPAR_DEVICE_CUH_ */
