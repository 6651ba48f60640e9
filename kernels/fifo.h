// Channels between peers: one-way queues of 16-byte lines from lane l of one rank to lane l of another. A lane is a CTA
// of a kernel (Memory and Group of channel_cuda.h), or a thread of a test.
//
// Arrival is in the data: a word of a ring that is kAbsent has not arrived. So a sender never sends kAbsent (see
// sendable()), and a receiver puts a line back to kAbsent once it has read it. It then gives credit for lines, and a
// sender waits for credit before it would overrun the ring. Positions count up for ever and are kept in device memory
// between kernels, so that calls follow each other without a barrier.
//
// Memory has, all static:
//   Line load(const Line*), void store(Line*, Line), uint32_t load(const uint32_t*), void store(uint32_t*, uint32_t):
//     relaxed, of the whole system, each word of a line by itself;
//   void storeIf(bool, Line*, Line): store() without a branch; void writeIf(bool, Line*, Line): a caller's line, so;
//   uint64_t acquire(const uint64_t*), void release(uint64_t*, uint64_t);
//   uint64_t now(): nanoseconds; void pause(): after a look that found nothing;
//   void prefetch(const void*): the memory will be read soon.
//   uint32_t increment(uint32_t* counter, uint32_t last): adds 1 in the lane's shared memory, or begins anew from 0 at
//     `last`, acquires and releases for the lane; gives the number before.
// Group is the threads of a lane: int thread(), int threads(), void sync(), bool any(bool) (a barrier, too). Its warps,
// in a test single threads: int warps(), bool leads(): one thread of each, bool inFirstWarp(), bool warpAll(bool) (a
// barrier of the warp), warp(): with thread() and threads().
#pragma once

#include <cstdint>

#include "channel_layout.h"
#include "device/peers.h"

/// On everything that lanes run: these headers are for kernels when nvcc reads them, and for threads otherwise.
#ifdef __CUDACC__
#define SEQPAR_LANE __device__ __forceinline__
#define SEQPAR_UNROLL _Pragma("unroll")
/// What is rare is kept out of the way: a kernel that runs once is as fast as its instructions come.
#define SEQPAR_RARE __device__ __noinline__
#define SEQPAR_ROLLED _Pragma("unroll 1")
#else
#define SEQPAR_LANE inline
#define SEQPAR_UNROLL
#define SEQPAR_RARE inline
#define SEQPAR_ROLLED
#endif

namespace seqpar {

struct alignas(16) Line {
  std::uint32_t word[4];
};

constexpr std::uint32_t kAbsent = 0xffffffffU;
/// What is sent in place of kAbsent: another NaN, or two.
constexpr std::uint32_t kAbsentAsFloat = 0x7fffffffU;
constexpr std::uint32_t kAbsentAsHalves = 0x7fff7fffU;

/// A caller's line, by ordinary accesses: nvcc does not join those of the words.
SEQPAR_LANE Line readLine(const Line* from) {
#ifdef __CUDACC__
  const uint4 all = *reinterpret_cast<const uint4*>(from);
  return {{all.x, all.y, all.z, all.w}};
#else
  return *from;
#endif
}

SEQPAR_LANE std::uint32_t sendable(std::uint32_t word, std::uint32_t instead) {
  return word == kAbsent ? instead : word;
}

SEQPAR_LANE bool complete(const Line& line) {
  return line.word[0] != kAbsent && line.word[1] != kAbsent && line.word[2] != kAbsent && line.word[3] != kAbsent;
}

/// Where lines are numbered from.
struct RingPlace {
  Line* ring;
  std::uint32_t base;
};

/// A line of a ring, numbered from `base`.
template <class Index>
SEQPAR_LANE Line* slotOf(Line* ring, Index base, std::uint32_t index) {
  return ring + ((static_cast<std::uint32_t>(base) + index) & (kRingLines - 1));
}

/// A wait for a peer: ask over() after every look that found nothing.
template <class Memory>
class Wait {
 public:
  SEQPAR_LANE Wait(const PeerView& view, int peer) : view_(view), peer_(peer) {}

  /// True: give up, publish nothing more, and leave. The host has been told.
  SEQPAR_LANE bool over() {
    return over([this] { return peer_; });
  }
  /// The same for one of several peers: peer() says which.
  template <class PeerOf>
  SEQPAR_LANE bool over(const PeerOf& peer) {
    Memory::pause();
    return ++looks_ % kLooks == 0 && late(peer());
  }

 private:
  static constexpr std::uint32_t kLooks = 2048;  // reading host memory takes longer than all of these

  SEQPAR_LANE bool late(int peer) {
    if (start_ == 0) start_ = Memory::now();
    return givesUp(view_, peer, start_);
  }
  SEQPAR_RARE static bool givesUp(const PeerView& view, int peer, std::uint64_t start) {
    if (Memory::load(const_cast<const std::uint32_t*>(view.abort)) == 0 &&
        (view.timeoutNs == 0 || Memory::now() - start <= view.timeoutNs))
      return false;
    Memory::store(const_cast<std::uint32_t*>(view.gaveUp), 1U + static_cast<std::uint32_t>(peer));
    return true;
  }

  const PeerView& view_;
  int peer_;
  std::uint32_t looks_ = 0;
  std::uint64_t start_ = 0;
};

/// The sending end of a channel. Lines are numbered from `base`, the position at which it was made. Every line is
/// written once, by any thread, after reserve().
template <class Memory>
class Sender {
 public:
  /// `credit`: lines that the peer is known to have taken.
  SEQPAR_LANE Sender(const PeerView& view, int peer, int lane, std::uint64_t base, std::uint64_t credit)
      : view_(view),
        peer_(peer),
        ring_(ring(view, peer, lane)),
        credits_(creditWord(view, peer, lane)),
        base_(base),
        credit_(credit) {}

  SEQPAR_LANE static Line* ring(const PeerView& view, int peer, int lane) {
    return reinterpret_cast<Line*>(view.windows[peer] + ChannelLayout::ringOffset(view.lanes, view.self, lane));
  }
  SEQPAR_LANE static const std::uint64_t* creditWord(const PeerView& view, int peer, int lane) {
    return reinterpret_cast<const std::uint64_t*>(view.windows[view.self] +
                                                  ChannelLayout::creditOffset(view.size, view.lanes, peer, lane));
  }

  /// Waits until lines below `end` have room. False: gave up.
  SEQPAR_LANE bool reserve(std::uint32_t end) {
    if (base_ + end > credit_ + kRingLines) credit_ = await(view_, peer_, credits_, base_ + end - kRingLines, credit_);
    return base_ + end <= credit_ + kRingLines;
  }

  /// No word of `line` is kAbsent.
  SEQPAR_LANE void put(std::uint32_t index, const Line& line) const { Memory::store(slot(index), line); }
  /// One word of a line of which no other word is written by put(); number 4 * line + word.
  SEQPAR_LANE void putWord(std::uint32_t index, std::uint32_t word) const {
    Memory::store(&slot(index / 4)->word[index % 4], word);
  }

  SEQPAR_LANE std::uint64_t credit() const { return credit_; }

 private:
  /// Waits for credit of at least `wanted`; less: gave up.
  SEQPAR_RARE static std::uint64_t await(const PeerView& view, int peer, const std::uint64_t* credits,
                                         std::uint64_t wanted, std::uint64_t credit) {
    Wait<Memory> wait(view, peer);
    while ((credit = Memory::acquire(credits)) < wanted) {
      if (wait.over()) break;
    }
    return credit;
  }

  SEQPAR_LANE Line* slot(std::uint32_t index) const { return slotOf(ring_, base_, index); }

  const PeerView& view_;
  int peer_;
  Line* ring_;
  const std::uint64_t* credits_;
  std::uint64_t base_, credit_;
};

/// The receiving end. Every line is taken or reset once. Lines that many threads want are looked at
/// by all of them, and reset after a barrier.
template <class Memory>
class Receiver {
 public:
  SEQPAR_LANE Receiver(const PeerView& view, int peer, int lane, std::uint64_t base)
      : Receiver(view, peer, RingPlace{ring(view, peer, lane), static_cast<std::uint32_t>(base)}) {}
  /// Of a ring that is known.
  SEQPAR_LANE Receiver(const PeerView& view, int peer, RingPlace place)
      : view_(view), peer_(peer), ring_(place.ring), base_(place.base) {}

  SEQPAR_LANE static Line* ring(const PeerView& view, int peer, int lane) {
    return reinterpret_cast<Line*>(view.windows[view.self] + ChannelLayout::ringOffset(view.lanes, peer, lane));
  }

  /// Looks once; what is not complete() has not arrived, or not whole.
  SEQPAR_LANE Line look(std::uint32_t index) const { return Memory::load(slot(index)); }
  /// For the thread that has found the line complete, or that knows that all have.
  SEQPAR_LANE void reset(std::uint32_t index) const {
    Memory::store(slot(index), Line{{kAbsent, kAbsent, kAbsent, kAbsent}});
  }

  /// Waits for the line `index`, of which `line` is what look() gave, and resets it. False: gave up.
  SEQPAR_LANE bool take(std::uint32_t index, Line& line) const {
    if (!await(index, line)) return false;
    reset(index);
    return true;
  }
  /// take() without the reset.
  SEQPAR_LANE bool await(std::uint32_t index, Line& line) const {
    Wait<Memory> wait(view_, peer_);
    SEQPAR_ROLLED
    while (!complete(line)) {
      if (wait.over()) return false;
      line = look(index);
    }
    return true;
  }

  /// Looks once at one word (see Sender::putWord).
  SEQPAR_LANE std::uint32_t lookWord(std::uint32_t index) const {
    return Memory::load(&slot(index / 4)->word[index % 4]);
  }
  /// Waits for one word, of which `word` is what lookWord() gave, and leaves it there. False: gave up.
  SEQPAR_LANE bool awaitWord(std::uint32_t index, std::uint32_t& word) const {
    Wait<Memory> wait(view_, peer_);
    SEQPAR_ROLLED
    while (word == kAbsent) {
      if (wait.over()) return false;
      word = lookWord(index);
    }
    return true;
  }

 private:
  SEQPAR_LANE Line* slot(std::uint32_t index) const { return slotOf(ring_, base_, index); }

  const PeerView& view_;
  int peer_;
  Line* ring_;
  std::uint32_t base_;
};

SEQPAR_BOTH inline ChannelState* channelState(const PeerView& view, int peer, int lane) {
  return reinterpret_cast<ChannelState*>(view.state) + ChannelLayout::number(view.lanes, peer, lane);
}

/// A channel at the begin of a call, or of a step of one; the same at both ends, even if calls that left it untouched
/// have been here.
SEQPAR_LANE ChannelState begun(ChannelState state) {
  state.sent = (state.sent + kCallLines - 1) / kCallLines * kCallLines;
  state.received = (state.received + kCallLines - 1) / kCallLines * kCallLines;
  return state;
}

/// Tells `peer` that `taken` of its lines are taken and reset, by threads that have met in a barrier since.
template <class Memory>
SEQPAR_LANE void giveCredit(const PeerView& view, int peer, int lane, std::uint64_t taken) {
  Memory::release(reinterpret_cast<std::uint64_t*>(view.windows[peer] +
                                                   ChannelLayout::creditOffset(view.size, view.lanes, view.self, lane)),
                  taken);
}

/// Counts `lines` that were taken and reset, by threads that have met in a barrier since, and gives credit once enough
/// is owed.
template <class Memory>
SEQPAR_LANE void countTaken(const PeerView& view, int peer, int lane, ChannelState& state, std::uint32_t lines) {
  state.received += lines;
  if (state.received - state.given < kCreditLines) return;
  giveCredit<Memory>(view, peer, lane, state.received);
  state.given = state.received;
}

}  // namespace seqpar
