// FIFOs between peers: one-way queues of 16-byte packets from channel l of one rank to channel l of another. A channel
// is a CTA of a kernel (Memory and Group of fifo_cuda.cuh) or a thread of a test.
//
// Arrival is in the data: a word of a ring that equals kAbsent has not arrived. A sender therefore never sends kAbsent
// (see sendable()), and a receiver resets a packet to kAbsent after it has read it. The receiver then gives credit, and
// a sender waits for credit before it would overrun the ring. Positions only grow and are kept in device memory between
// kernels, so consecutive calls need no barrier.
//
// Memory provides, all static:
//   LamportPacket load(const LamportPacket*), void store(LamportPacket*, LamportPacket), uint32_t load(const
//   uint32_t*), void store(uint32_t*, uint32_t): relaxed, system scope, each word of a packet separately;
//   void storeIf(bool, LamportPacket*, LamportPacket): store() without a branch; void writeIf(bool, LamportPacket*,
//   LamportPacket): the same for a packet of the caller's buffer, by an ordinary store;
//   uint64_t acquire(const uint64_t*), void release(uint64_t*, uint64_t);
//   uint64_t now(): nanoseconds; void pause(): after an unsuccessful poll;
//   void prefetch(const void*): prefetches memory that will be read soon;
//   uint32_t increment(uint32_t* counter, uint32_t last): adds 1 in the channel's shared memory, or wraps to 0 at
//     `last`; acquires and releases for the channel; returns the previous value.
// Group is the threads of a channel: int thread(), int threads(), void sync(), bool any(bool) (also a barrier). For its
// warps, single threads in a test: int warps(), bool leads(): one thread of each warp, bool inFirstWarp(), bool
// warpAll(bool) (also a barrier of the warp), warp(): with thread() and threads().
#pragma once

#include <cstdint>

#include "kernels/arch/device.h"
#include "kernels/fifo_layout.h"
#include "kernels/peers.h"
#include "kernels/wait.h"

namespace seqpar {

struct alignas(16) LamportPacket {
  std::uint32_t word[4];
};

constexpr std::uint32_t kAbsent = 0xffffffffU;
/// Sent instead of kAbsent: another NaN, or two.
constexpr std::uint32_t kAbsentAsFloat = 0x7fffffffU;
constexpr std::uint32_t kAbsentAsHalves = 0x7fff7fffU;

/// Reads a packet of the caller's buffer with one vector access: nvcc does not merge the accesses of the words.
SEQPAR_DEVICE LamportPacket readPacket(const LamportPacket* from) {
#ifdef __CUDACC__
  const uint4 all = *reinterpret_cast<const uint4*>(from);
  return {{all.x, all.y, all.z, all.w}};
#else
  return *from;
#endif
}

SEQPAR_DEVICE std::uint32_t sendable(std::uint32_t word, std::uint32_t instead) {
  return word == kAbsent ? instead : word;
}

SEQPAR_DEVICE bool complete(const LamportPacket& packet) {
  return packet.word[0] != kAbsent && packet.word[1] != kAbsent && packet.word[2] != kAbsent &&
         packet.word[3] != kAbsent;
}

/// A ring and the position of packet 0.
struct RingPlace {
  LamportPacket* ring;
  std::uint32_t base;
};

/// Packet of a ring, numbered from `base`.
template <class Index>
SEQPAR_DEVICE LamportPacket* packetAt(LamportPacket* ring, Index base, std::uint32_t index) {
  return ring + ((static_cast<std::uint32_t>(base) + index) & (kRingPackets - 1));
}

/// The sending end of a FIFO. Packets are numbered from `base`, the position at construction. Every packet is written
/// once, by any thread, after reserve().
template <class Memory>
class Sender {
 public:
  /// `credit`: packets that the peer is known to have read.
  SEQPAR_DEVICE Sender(const PeerView& view, int peer, int channel, std::uint64_t base, std::uint64_t credit)
      : view_(view),
        peer_(peer),
        ring_(ring(view, peer, channel)),
        credits_(creditWord(view, peer, channel)),
        base_(base),
        credit_(credit) {}

  SEQPAR_DEVICE static LamportPacket* ring(const PeerView& view, int peer, int channel) {
    return reinterpret_cast<LamportPacket*>(view.windows[peer] +
                                            FifoLayout::ringOffset(view.channels, view.self, channel));
  }
  SEQPAR_DEVICE static const std::uint64_t* creditWord(const PeerView& view, int peer, int channel) {
    return reinterpret_cast<const std::uint64_t*>(view.windows[view.self] +
                                                  FifoLayout::creditOffset(view.size, view.channels, peer, channel));
  }

  /// Waits until the ring has space for packets below `end`. Returns false on timeout.
  SEQPAR_DEVICE bool reserve(std::uint32_t end) {
    if (base_ + end > credit_ + kRingPackets)
      credit_ = await(view_, peer_, credits_, base_ + end - kRingPackets, credit_);
    return base_ + end <= credit_ + kRingPackets;
  }

  /// No word of `packet` may be kAbsent.
  SEQPAR_DEVICE void put(std::uint32_t index, const LamportPacket& packet) const { Memory::store(slot(index), packet); }
  /// Writes word 4 * packet + word. put() must not write any other word of that packet.
  SEQPAR_DEVICE void putWord(std::uint32_t index, std::uint32_t word) const {
    Memory::store(&slot(index / 4)->word[index % 4], word);
  }

  SEQPAR_DEVICE std::uint64_t credit() const { return credit_; }

 private:
  /// Waits for credit of at least `needed`. Returns less on timeout.
  SEQPAR_DEVICE_NOINLINE static std::uint64_t await(const PeerView& view, int peer, const std::uint64_t* credits,
                                                    std::uint64_t needed, std::uint64_t credit) {
    Wait<Memory> wait(view, peer);
    while ((credit = Memory::acquire(credits)) < needed) {
      if (wait.over()) break;
    }
    return credit;
  }

  SEQPAR_DEVICE LamportPacket* slot(std::uint32_t index) const { return packetAt(ring_, base_, index); }

  const PeerView& view_;
  int peer_;
  LamportPacket* ring_;
  const std::uint64_t* credits_;
  std::uint64_t base_, credit_;
};

/// The receiving end. Every packet is taken or reset once. Packets for several threads are polled by all of them and
/// reset after a barrier.
template <class Memory>
class Receiver {
 public:
  SEQPAR_DEVICE Receiver(const PeerView& view, int peer, int channel, std::uint64_t base)
      : Receiver(view, peer, RingPlace{ring(view, peer, channel), static_cast<std::uint32_t>(base)}) {}
  /// For a ring at a known address.
  SEQPAR_DEVICE Receiver(const PeerView& view, int peer, RingPlace place)
      : view_(view), peer_(peer), ring_(place.ring), base_(place.base) {}

  SEQPAR_DEVICE static LamportPacket* ring(const PeerView& view, int peer, int channel) {
    return reinterpret_cast<LamportPacket*>(view.windows[view.self] +
                                            FifoLayout::ringOffset(view.channels, peer, channel));
  }

  /// Polls once; a packet that is not complete() has not fully arrived.
  SEQPAR_DEVICE LamportPacket poll(std::uint32_t index) const { return Memory::load(slot(index)); }
  /// Called by the thread that found the packet complete, or that knows that all threads did.
  SEQPAR_DEVICE void reset(std::uint32_t index) const {
    Memory::store(slot(index), LamportPacket{{kAbsent, kAbsent, kAbsent, kAbsent}});
  }

  /// Waits for the packet `index` and resets it; `packet` is the value that poll() returned. Returns false on timeout.
  SEQPAR_DEVICE bool take(std::uint32_t index, LamportPacket& packet) const {
    if (!await(index, packet)) return false;
    reset(index);
    return true;
  }
  /// take() without the reset.
  SEQPAR_DEVICE bool await(std::uint32_t index, LamportPacket& packet) const {
    Wait<Memory> wait(view_, peer_);
    SEQPAR_ROLLED
    while (!complete(packet)) {
      if (wait.over()) return false;
      packet = poll(index);
    }
    return true;
  }

  /// Polls one word once (see Sender::putWord).
  SEQPAR_DEVICE std::uint32_t pollWord(std::uint32_t index) const {
    return Memory::load(&slot(index / 4)->word[index % 4]);
  }
  /// Waits for one word and leaves it in the ring; `word` is the value that pollWord() returned. Returns false on
  /// timeout.
  SEQPAR_DEVICE bool awaitWord(std::uint32_t index, std::uint32_t& word) const {
    Wait<Memory> wait(view_, peer_);
    SEQPAR_ROLLED
    while (word == kAbsent) {
      if (wait.over()) return false;
      word = pollWord(index);
    }
    return true;
  }

 private:
  SEQPAR_DEVICE LamportPacket* slot(std::uint32_t index) const { return packetAt(ring_, base_, index); }

  const PeerView& view_;
  int peer_;
  LamportPacket* ring_;
  std::uint32_t base_;
};

SEQPAR_BOTH inline FifoState* fifoState(const PeerView& view, int peer, int channel) {
  return reinterpret_cast<FifoState*>(view.state) + FifoLayout::number(view.channels, peer, channel);
}

/// A FIFO at the start of a call or of a step: the same at both ends, even after calls that did not use it.
SEQPAR_DEVICE FifoState alignedToCall(FifoState state) {
  state.sent = (state.sent + kCallPackets - 1) / kCallPackets * kCallPackets;
  state.received = (state.received + kCallPackets - 1) / kCallPackets * kCallPackets;
  return state;
}

/// Tells `peer` that `tail` of its packets are read and reset. The threads that did so have passed a barrier since.
template <class Memory>
SEQPAR_DEVICE void giveCredit(const PeerView& view, int peer, int channel, std::uint64_t tail) {
  Memory::release(reinterpret_cast<std::uint64_t*>(
                      view.windows[peer] + FifoLayout::creditOffset(view.size, view.channels, view.self, channel)),
                  tail);
}

/// Counts `packets` packets that were read and reset, and gives credit once enough is owed. The threads that read them
/// have passed a barrier since.
template <class Memory>
SEQPAR_DEVICE void countReceived(const PeerView& view, int peer, int channel, FifoState& state, std::uint32_t packets) {
  state.received += packets;
  if (state.received - state.credited < kCreditPackets) return;
  giveCredit<Memory>(view, peer, channel, state.received);
  state.credited = state.received;
}

}  // namespace seqpar
