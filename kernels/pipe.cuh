// The two ends of a pipe, for a group of threads of one CTA (half of it: the halves send and receive at the same time,
// so that no order of sends and receives can lock).
#pragma once

#include <cstdint>

#include "channel_cuda.h"
#include "device/peers.h"
#include "pipe_layout.h"

namespace seqpar::device {

/// Threads of a CTA that work together, with a barrier of their own. `id` 1 to 15.
struct ThreadGroup {
  int id;
  int rank;     ///< this thread's number in the group
  int threads;  ///< a multiple of 32

  __device__ bool leader() const { return rank == 0; }
  __device__ void sync() const { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
};

/// A group's view of all its pipes of one lane. After a wait has given up, every further call does nothing, in all
/// threads of the group alike, so that a failure publishes nothing.
class PipeEnds {
 public:
  /// `dead`: a word of shared memory of the group, 0 at first.
  __device__ PipeEnds(const PeerView& view, ThreadGroup group, int lane, volatile int* dead)
      : view_(view), group_(group), lane_(lane), dead_(dead) {}

  __device__ bool alive() const { return *dead_ == 0; }
  __device__ const ThreadGroup& group() const { return group_; }

  /// How many chunks this rank has put into, or taken out of, its pipe with `peer`.
  __device__ std::uint64_t* sent(int peer) const { return own(PipeLayout::sent(peer, lane_, view_.lanes)); }
  __device__ std::uint64_t* received(int peer) const { return own(PipeLayout::received(peer, lane_, view_.lanes)); }

  /// Room for chunk number `chunk` at `peer`.
  __device__ std::byte* room(int peer, std::uint64_t chunk) const {
    return view_.pipes[peer] + PipeLayout::ring(view_.self, lane_, view_.lanes) +
           chunk % PipeLayout::kSlots * PipeLayout::kChunk;
  }
  /// Chunk number `chunk` of `peer`, once it has arrived.
  __device__ const std::byte* chunk(int peer, std::uint64_t chunk) const {
    return view_.pipes[view_.self] + PipeLayout::ring(peer, lane_, view_.lanes) +
           chunk % PipeLayout::kSlots * PipeLayout::kChunk;
  }

  /// The leader's part of a wait until `peer` has taken enough that `chunk` has room. False: given up.
  __device__ bool awaitRoom(int peer, std::uint64_t chunk) const {
    if (chunk < PipeLayout::kSlots) return true;
    return await(word(view_.self, PipeLayout::taken(peer, lane_, view_.size, view_.lanes)),
                 chunk - PipeLayout::kSlots + 1, peer);
  }
  /// The same until `chunk` of `peer` has arrived.
  __device__ bool awaitChunk(int peer, std::uint64_t chunk) const {
    return await(word(view_.self, PipeLayout::arrived(peer, lane_, view_.size, view_.lanes)), chunk + 1, peer);
  }

  /// By the leader, after a barrier behind the group's stores: `chunks` chunks so far are complete at `peer`.
  __device__ void announce(int peer, std::uint64_t chunks) const {
    CudaMemory::release(word(peer, PipeLayout::arrived(view_.self, lane_, view_.size, view_.lanes)), chunks);
  }
  /// By the leader, after a barrier behind the group's loads: `chunks` chunks so far may be overwritten by `peer`.
  __device__ void giveBack(int peer, std::uint64_t chunks) const {
    CudaMemory::release(word(peer, PipeLayout::taken(view_.self, lane_, view_.size, view_.lanes)), chunks);
  }

  __device__ void markDead() const { *dead_ = 1; }

 private:
  __device__ std::uint64_t* own(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t*>(view_.pipeState + offset);
  }
  __device__ std::uint64_t* word(int peer, std::size_t offset) const {
    return reinterpret_cast<std::uint64_t*>(view_.pipes[peer] + offset);
  }

  __device__ bool await(const std::uint64_t* counter, std::uint64_t least, int peer) const {
    constexpr int kSpins = 2000;  // the abort word is host memory: a look costs a microsecond
    if (CudaMemory::acquire(counter) >= least) return true;
    const std::uint64_t begin = CudaMemory::now();
    for (;;) {
      for (int spin = 0; spin < kSpins; ++spin) {
        if (CudaMemory::acquire(counter) >= least) return true;
      }
      if (*view_.abort != 0) return false;
      if (view_.timeoutNs != 0 && CudaMemory::now() - begin > view_.timeoutNs) {
        *view_.gaveUp = static_cast<std::uint32_t>(peer) + 1;
        __threadfence_system();
        return false;
      }
    }
  }

  const PeerView& view_;
  ThreadGroup group_;
  int lane_;
  volatile int* dead_;
};

}  // namespace seqpar::device
