// All-Scan of states between GPUs (state_scan.h).
//
// Work      a group of kScanThreads takes togetherIn(Role) parts of heads in steps of the grid; a thread has one
//           packet, four elements, of each part
// Roles     a kernel per Role of the rank: First sends, Between receives and sends, Last receives, Overlapping is Last
//           in CTAs of four groups, which wait next to the next kernel's CTAs. ctasOfSm(Role) CTAs per SM at least
// Tiles     a part is at most 4 kScanThreads elements of a head's state
// Smem      none
// Barriers  of a group: __syncthreads(), or the named barrier kFirstGroup + group where a CTA has several groups
// Overlap   may start before the kernel of pass 1 ends. griddepcontrol.wait: before it reads maps; without maps, before
//           it exits. It lets the next kernel start once it no longer depends on another rank; Overlapping: at once.
#include "kernels/attn/linear/state_scan.h"

#include "kernels/attn/linear/decay.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/scan_maps.h"
#include "kernels/attn/linear/sequence.h"
#include "seqpar/seqpar_device.cuh"

namespace seqpar::attn {
namespace {

using Head = device::detail::Head;  // here a part of one

constexpr int kScanThreads = 256;
constexpr int kMapsAtOnce = 4;     // maps of which a thread loads elements together
constexpr int kMostWaiting = 128;  // CTAs that wait for other ranks: the rest of the SMs is left to concurrent work

/// Last: the rank's map is not needed. Overlapping: Last on the SMs that the next kernel leaves idle.
enum class Role { First, Between, Last, Overlapping };
SEQPAR_BOTH_INLINE constexpr bool hasMap(Role role) {
  return role == Role::First || role == Role::Between;
}
/// Parts that kScanThreads wait for together, as many as registers hold.
constexpr int togetherIn(Role role) {
  if (role == Role::First) return 1;
  return role == Role::Between ? 2 : 4;
}
/// Groups of kScanThreads in a CTA.
constexpr int groupsIn(Role role) {
  return role == Role::Overlapping ? 4 : 1;
}

/// Named barriers; __syncthreads() has 0.
enum GroupBarrier { kFirstGroup = 1 };  ///< kFirstGroup + group: of a group of kScanThreads
static_assert(kFirstGroup + groupsIn(Role::Overlapping) <= ptx::kNamedBarriers);
static_assert(kScanThreads * groupsIn(Role::Overlapping) <= 1024);

/// Four adjacent elements of a rank's map of a head.
struct Quarter {
  float4 state;
  float decay;
};

SEQPAR_DEVICE float4 applied(const Quarter& map, const float4& x) {
  const auto on = [&](float state, float number) { return state + (map.decay == 0 ? 0 : map.decay * number); };
  return make_float4(on(map.state.x, x.x), on(map.state.y, x.y), on(map.state.z, x.z), on(map.state.w, x.w));
}

/// Parts, with one packet of each per thread of kScanThreads.
template <Role R>
class StateScanGroup {
 public:
  static constexpr int kTogether = togetherIn(R), kGroups = groupsIn(R);

  SEQPAR_DEVICE explicit StateScanGroup(const StateScan& pass)
      : pass_(pass),
        count_(static_cast<int>(pass.scan.heads)),
        elements_(static_cast<int>(pass.scan.elements)),
        group_(static_cast<int>(threadIdx.x) / kScanThreads),
        packet_(static_cast<int>(threadIdx.x) % kScanThreads) {}

  /// Waits until all packets that this group sends have space. Returns false if a rank has failed.
  SEQPAR_DEVICE bool awaitRoom() const {
    bool failed = false;
    for (int first = firstPart(); first < count_ && packet_ < kTogether; first += step()) {
      if (first + packet_ >= count_ || failed) continue;
      const Head head(pass_.scan, first + packet_);
      failed = head.stopped() || !head.waitForRoom();
      if (failed) head.stop();
    }
    return !any(failed);
  }
  /// First rank: writes `incoming`, which does not depend on the previous kernel.
  SEQPAR_DEVICE void putOwn() const {
    for (int part = firstPart(); part < count_; part += step()) {
      const int64_t at = placeOf(part);
      if (has(part)) *reinterpret_cast<float4*>(pass_.incoming + at) = ownAt(at);
    }
  }
  SEQPAR_DEVICE void run() const {
    for (int first = firstPart(); first < count_; first += step()) {
      if (!runParts(first)) return;
    }
  }

 private:
  /// A barrier of the group; returns true if `mine` is true on any of its threads.
  SEQPAR_DEVICE bool any(bool mine) const {
    if (kGroups == 1) return __syncthreads_or(mine) != 0;
    return ptx::barrierRedOr(kFirstGroup + group_, kScanThreads, mine);
  }
  SEQPAR_DEVICE int firstPart() const { return (static_cast<int>(blockIdx.x) * kGroups + group_) * kTogether; }
  SEQPAR_DEVICE int step() const { return static_cast<int>(gridDim.x) * kGroups * kTogether; }
  /// Offset of this thread's elements of a part, in states.
  SEQPAR_DEVICE int64_t placeOf(int part) const { return int64_t{part} * elements_ + 4 * packet_; }
  /// The incoming state of the first rank.
  SEQPAR_DEVICE float4 ownAt(int64_t at) const {
    if (pass_.initial == nullptr || pass_.resetsIncoming) return make_float4(0, 0, 0, 0);
    return *reinterpret_cast<const float4*>(pass_.initial + at);
  }
  SEQPAR_DEVICE bool has(int part) const { return part < count_ && 4 * packet_ < elements_; }

  /// Returns false if a rank has failed.
  SEQPAR_DEVICE bool runParts(int first) const {
    const Head head(pass_.scan, first);
    Quarter maps[kTogether] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (hasMap(R) && has(first + i)) maps[i] = mapAt(first + i);
    }
    uint4 seen[kTogether];
    bool failed = false;
    if (R != Role::First) {
      // One thread polls the first packet: more polling threads would slow down concurrent kernels.
      if (packet_ == 0) {
        seen[0] = head.load(0);
        failed = !head.await(0, seen[0]);
      }
      failed = any(failed);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (has(first + i)) seen[i] = Head(head, first + i).load(packet_);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (has(first + i) && !failed) failed = !hop(Head(head, first + i), first + i, maps[i], seen[i]);
    }
    failed = any(failed);
    if (packet_ < kTogether && first + packet_ < count_) {
      const Head mine(head, first + packet_);
      if (failed) {
        mine.stop();
      } else {
        mine.countReceived();
        mine.countSent();
      }
    }
    return !failed;
  }

  /// Returns false if it timed out or was stopped.
  SEQPAR_DEVICE bool hop(const Head& head, int part, const Quarter& map, uint4& seen) const {
    const int64_t at = placeOf(part);
    float4 x = make_float4(0, 0, 0, 0);
    if (R != Role::First) {
      if (!head.take(packet_, seen)) return false;
      x = make_float4(__uint_as_float(seen.x), __uint_as_float(seen.y), __uint_as_float(seen.z),
                      __uint_as_float(seen.w));
    } else {
      x = ownAt(at);
    }
    if (pass_.resetsIncoming) x = make_float4(0, 0, 0, 0);
    const float4 total = applied(map, x);
    const float numbers[4] = {total.x, total.y, total.z, total.w};
    if (hasMap(R) && !head.last()) head.put(packet_, numbers);
    if (R != Role::First) *reinterpret_cast<float4*>(pass_.incoming + at) = x;
    if (hasMap(R) && pass_.outgoing != nullptr) *reinterpret_cast<float4*>(pass_.outgoing + at) = total;
    return true;
  }

  /// This thread's elements of a part: composes all segments' maps, from the last that applies back to where decays
  /// have forgotten the rest.
  SEQPAR_DEVICE Quarter mapAt(int part) const {
    const int size = pass_.dk * pass_.dv, parts = size / elements_, last = pass_.reverse ? 0 : pass_.segments - 1;
    const int step = pass_.reverse ? 1 : -1;
    const int number = part % parts * elements_ + 4 * packet_, channel = pass_.width > 1 ? number / pass_.dv : 0;
    const int64_t map = int64_t{part / parts} * pass_.segments + last;
    const float* const logs = pass_.maps.transitions + map * pass_.width + channel;
    const float* const states = pass_.maps.states + map * size + number;
    Quarter all = {*reinterpret_cast<const float4*>(states), 1};
    bool more = true;
#pragma unroll 1
    for (int first = 0; first < pass_.segments && more; first += kMapsAtOnce) {
      float decays[kMapsAtOnce], factors[kMapsAtOnce];  // of states, so that their loads are independent of each other
#pragma unroll
      for (int i = 0; i < kMapsAtOnce; ++i) {
        decays[i] = first + i < pass_.segments ? logs[int64_t{first + i} * step * pass_.width] : kNoMap;
      }
#pragma unroll
      for (int i = 0; i < kMapsAtOnce; ++i) {
        more = more && decays[i] != kNoMap;
        factors[i] = more ? all.decay : 0;
        if (more) all.decay *= exp2f(decays[i] * kLog2e);
        if (all.decay < kReadDecay) all.decay = 0;
        more = more && all.decay != 0;
      }
#pragma unroll
      for (int i = 0; i < kMapsAtOnce; ++i) {
        if (factors[i] == 0 || first + i == 0) continue;
        all.state = applied({all.state, factors[i]},
                            *reinterpret_cast<const float4*>(states + int64_t{first + i} * step * size));
      }
    }
    if (pass_.ignoresIncoming) all.decay = 0;
    return all;
  }

  const StateScan& pass_;
  int count_, elements_, group_, packet_;
};

/// CTAs that an SM must have space for: they wait for packets concurrently.
constexpr int ctasOfSm(Role role) {
  return role == Role::Between ? 4 : role == Role::Overlapping ? 1 : 5;
}

/// The next kernel may start once this one no longer depends on another rank: then its CTAs may wait on all SMs.
template <Role R>
__global__ void __launch_bounds__(kScanThreads* groupsIn(R), ctasOfSm(R))
    stateScanKernel(const __grid_constant__ StateScan pass) {
  if (R == Role::Overlapping) ptx::griddepcontrolLaunchDependents();
  const StateScanGroup<R> group(pass);
  const bool fine = group.awaitRoom();
  if (R == Role::First && fine) group.putOwn();
  if (hasMap(R)) ptx::griddepcontrolWait();
  if (R == Role::First && fine) {
    __threadfence();  // publishes the previous kernel's writes to the next one
    ptx::griddepcontrolLaunchDependents();
  }
  if (fine) group.run();
  if (R == Role::Last) ptx::griddepcontrolLaunchDependents();
  if (!hasMap(R)) ptx::griddepcontrolWait();
}

template <Role R>
cudaError_t start(const StateScan& scan, const Launch& launch) {
  int ctas = launch.ctas;
  if (R != Role::First) ctas = ctas > 0 ? std::min(ctas, kMostWaiting) : kMostWaiting;
  constexpr int kParts = togetherIn(R) * groupsIn(R);
  const int64_t blocks = (scan.scan.heads + kParts - 1) / kParts;
  return launchKernel(stateScanKernel<R>, gridOf(blocks, ctas), kScanThreads * groupsIn(R), 0, launch.stream,
                      startsEarly(recordOf(scan), launch), scan);
}

}  // namespace

int stateParts(int dk, int dv) {
  int parts = 1;
  while (dk * dv / parts > 4 * kScanThreads) parts *= 2;
  return parts;
}

int launchStateScan(const StateScan& scan, const Launch& launch) {
  if (scan.scan.heads == 0) return cudaSuccess;
  if (scan.scan.position == 0) return start<Role::First>(scan, launch);
  if (scan.segments > 0) return start<Role::Between>(scan, launch);
  return scan.overlapsNext ? start<Role::Overlapping>(scan, launch) : start<Role::Last>(scan, launch);
}

int loadStateScan() {
  cudaFuncAttributes attributes;
  for (auto* kernel : {stateScanKernel<Role::First>, stateScanKernel<Role::Between>, stateScanKernel<Role::Last>,
                       stateScanKernel<Role::Overlapping>}) {
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace seqpar::attn
