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
 * or all three in one by passHead(), which keeps the numbers in registers and passes each line on at once: the lowest
 * latency where the state's elements do not mix (SUM, SCALAR and DIAG).
 *
 * All functions are called by all threads of a block together, and begin and end with a barrier of the block. Which
 * block has which head is the caller's choice; a head belongs to one block at a time, and different blocks work on
 * different heads at the same time. A block that waits occupies its processor, so ranks should take the heads in the
 * same order: blocks that are started first wait for what is published first. publishHead() waits only until the next
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

/* A line is 16 bytes. Its arrival is in the data: a word of kAbsent is not there yet. The receiver puts lines back to
   kAbsent and tells the sender; there are two sets of lines, for scans of even and of odd numbers. */
constexpr uint32_t kAbsent = 0xffffffffU;
constexpr uint32_t kNan = 0x7fffffffU; /* sent in place of a number that looks like kAbsent */
constexpr uint32_t kLooks = 2048;      /* between looks at the clock and at host memory */
constexpr uint64_t kSets = 2;

struct Counts {
  uint64_t received, sent; /* of one head */
};

__device__ inline uint4 loadLine(const uint4* from) {
  uint4 line;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(line.x), "=r"(line.y), "=r"(line.z), "=r"(line.w)
               : "l"(from)
               : "memory");
  return line;
}
__device__ inline void storeLine(uint4* to, uint4 line) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(line.x), "r"(line.y), "r"(line.z),
               "r"(line.w)
               : "memory");
}
__device__ inline bool complete(uint4 line) {
  return line.x != kAbsent && line.y != kAbsent && line.z != kAbsent && line.w != kAbsent;
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

  __device__ bool first() const { return scan_.position == 0; }
  __device__ bool last() const { return scan_.position + 1 == scan_.positions; }
  __device__ uint64_t lines() const { return (static_cast<uint64_t>(scan_.elements) + 3) / 4; }

  /* Waits until the lines to the next position are free. For one thread. False: gave up. */
  __device__ bool waitForRoom() const {
    if (last() || sent_ < kSets) return true;
    const uint64_t* const taken = static_cast<const uint64_t*>(scan_.taken) + head_;
    uint64_t start = 0, number = 0;
    for (uint32_t looks = 1;; ++looks) {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(number) : "l"(taken) : "memory");
      if (number + kSets > sent_) return true;
      if (looks % kLooks == 0 && late(start, scan_.after)) return false;
    }
  }

  __device__ uint4 look(uint64_t line) const { return loadLine(inbox() + line); }
  /* Waits for a line, of which `seen` is what look() gave, and resets it. False: gave up. */
  __device__ bool take(uint64_t line, uint4& seen) const {
    uint64_t start = 0;
    for (uint32_t looks = 1; !complete(seen); ++looks) {
      if (looks % kLooks == 0 && late(start, scan_.before)) return false;
      seen = look(line);
    }
    storeLine(inbox() + line, make_uint4(kAbsent, kAbsent, kAbsent, kAbsent));
    return true;
  }
  __device__ void put(uint64_t line, const float (&numbers)[4]) const {
    uint4* const to = static_cast<uint4*>(scan_.outbox) + (sent_ % kSets * scan_.heads + head_) * lines() + line;
    storeLine(to, make_uint4(sendable(numbers[0]), sendable(numbers[1]), sendable(numbers[2]), sendable(numbers[3])));
  }

  /* For one thread, after a barrier that follows the last take(). */
  __device__ void countReceived() const {
    countsOf()->received = received_ + 1;
    if (first()) return;
    uint64_t* const given = static_cast<uint64_t*>(scan_.given) + head_;
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(given), "l"(received_ + 1) : "memory");
  }
  __device__ void countSent() const { countsOf()->sent = sent_ + 1; }

  /* Of all heads: a wait has been given up. */
  __device__ bool stopped() const { return *stopWord() != 0; }
  __device__ void stop() const { *stopWord() = 1; }

 private:
  /* Counts of all heads, then the word that stops everything. */
  __device__ Counts* countsOf() const { return static_cast<Counts*>(scan_.counts) + head_; }
  __device__ volatile uint32_t* stopWord() const {
    return reinterpret_cast<volatile uint32_t*>(static_cast<Counts*>(scan_.counts) + scan_.heads);
  }
  __device__ uint4* inbox() const {
    return static_cast<uint4*>(scan_.inbox) + (received_ % kSets * scan_.heads + head_) * lines();
  }

  __device__ bool late(uint64_t& start, int peer) const {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (start == 0) start = now;
    const bool over = scan_.timeoutNs != 0 && now - start > scan_.timeoutNs;
    if (!over && *static_cast<const volatile uint32_t*>(scan_.abortWord) == 0) return false;
    *static_cast<volatile uint32_t*>(scan_.gaveUpWord) = 1U + static_cast<uint32_t>(peer);
    return true;
  }

  const seqparScanDevice_t& scan_;
  int64_t head_;
  uint64_t received_, sent_;
};

/* Steps through a head's lines, as many at once as are in flight: act(first element of the line, x), which returns
   what is put where `sends`. */
template <bool Receives, bool Sends, class Act>
__device__ inline bool run(const seqparScanDevice_t& scan, int64_t number, const Act& act) {
  constexpr unsigned kInFlight = 4;
  const Head head(scan, number);
  const bool receives = Receives && !head.first();
  const bool sends = Sends && !head.last();
  const bool leader = threadOfBlock() == 0;
  bool late = leader && (head.stopped() || (sends && !head.waitForRoom()));
  if (__syncthreads_or(late)) {
    if (leader) head.stop();
    return false;
  }
  const unsigned threads = threadsOfBlock();
  const uint64_t lines = head.lines();
  for (uint64_t begin = threadOfBlock(); begin < lines && !late; begin += uint64_t{kInFlight} * threads) {
    uint4 seen[kInFlight];
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) {
      if (receives && begin + i * threads < lines) seen[i] = head.look(begin + i * threads);
    }
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) {
      const uint64_t line = begin + i * threads;
      if (line >= lines || late) continue;
      float4 x = make_float4(0, 0, 0, 0);
      if (receives) {
        late = !head.take(line, seen[i]);
        if (late) continue;
        x = make_float4(__uint_as_float(seen[i].x), __uint_as_float(seen[i].y), __uint_as_float(seen[i].z),
                        __uint_as_float(seen[i].w));
      }
      const float4 out = act(4 * static_cast<int64_t>(line), x);
      const float numbers[4] = {out.x, out.y, out.z, out.w};
      if (sends) head.put(line, numbers);
    }
  }
  late = __syncthreads_or(late) != 0;
  if (leader) {
    if (late) head.stop();
    if (!late && Receives) head.countReceived();
    if (!late && Sends) head.countSent();
  }
  return !late;
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
