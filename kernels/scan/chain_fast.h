// CHAIN of fast vecs without flags, with as few instructions as possible after a packet's arrival. The wire format is
// that of chain.h.
#pragma once

#include "kernels/channel.h"
#include "kernels/scan/fast_task.h"

namespace seqpar {

/// One channel's part. Its threads process rows of vecs; each thread has kVecs vecs of a row in flight. kOneRow: there
/// is only one row; see fits().
template <class Memory, class Group, int kVecs, bool kOneRow>
class FastChainProgram {
 public:
  SEQPAR_DEVICE FastChainProgram(const PeerView& view, const FastTask& task, int channel, const Group& group,
                                 ChannelPositions& shared)
      : view_(view), task_(task), channel_(channel), group_(group), shared_(shared), range_(task.part(channel)) {}

  /// Whether channels of `threads` threads can process their parts.
  static bool fits(const ScanTask& task, std::uint32_t threads) {
    return !kOneRow || task.part(0, 4).size() <= threads * kVecs;
  }

  /// Returns false on timeout.
  SEQPAR_DEVICE bool run() {
    const auto step = static_cast<std::uint32_t>(group_.threads()) * kVecs;
    Row row;
    place(row, range_.begin);
    fetch(row);
    FifoState in{};
    FifoState out{};
    if (!task_.first()) in = alignedToCall(task_.fifo(task_.before, channel_));
    if (!task_.last()) out = alignedToCall(task_.fifo(task_.after, channel_));
    const Ends ends{
        task_.inRing(task_.before, channel_), task_.outAfter + static_cast<std::size_t>(channel_) * kRingPackets,
        static_cast<std::uint32_t>(in.received) - range_.begin, static_cast<std::uint32_t>(out.sent) - range_.begin};
    Sender<Memory> next(view_, task_.after, channel_, out.sent, out.credit);
    bool ok = true;
    if constexpr (kOneRow) {
      ok = !row.has[0] || hopRow(row, ends, next);
    } else {
      SpanCredit<Memory, Group> credit(view_, task_.before, channel_, group_, shared_, in,
                                       task_.first() ? 0 : range_.size());
      SEQPAR_ROLLED
      for (std::uint32_t begin = range_.begin; ok && begin < range_.end; begin += step) {
        const Row now = row;
        place(row, begin + step);
        if (kVecs == 1) fetch(row);
        ok = !now.has[0] || hopRow(now, ends, next);
        if (kVecs > 1) fetch(row);  // registers do not suffice for two rows
        for (int i = 0; i < kVecs; ++i) prefetch(row.vec[i] + kAhead * step);
        ok = credit.through(ok, (begin + step < range_.end ? begin + step : range_.end) - range_.begin);
      }
      in.credited = credit.credited();
    }
    if (group_.any(!ok)) return false;
    if (group_.thread() == 0) finish(in, out, next.credit());
    return true;
  }

 private:
  /// A thread's vecs of a row, and this rank's part of them.
  struct Row {
    std::uint32_t vec[kVecs];
    bool has[kVecs];
    FastVec mine[kVecs];
  };
  /// Rings, and the offset from a vec's index to its packet's index.
  struct Ends {
    LamportPacket* in;
    LamportPacket* out;
    std::uint32_t inAt, outAt;
  };

  SEQPAR_DEVICE void place(Row& row, std::uint32_t begin) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      row.vec[i] = begin + static_cast<std::uint32_t>(group_.threads() * i + group_.thread());
      row.has[i] = row.vec[i] < range_.end;
    }
  }
  static constexpr std::uint32_t kAhead = 2;  // rows
  SEQPAR_DEVICE void prefetch(std::uint32_t vec) const {
    if (task_.state != nullptr && vec < range_.end) Memory::prefetch(task_.state + vec);
  }
  SEQPAR_DEVICE void fetch(Row& row) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kVecs; ++i) row.mine[i] = row.has[i] ? fetched(task_, row.vec[i]) : FastVec{};
  }

  SEQPAR_DEVICE bool hopRow(const Row& row, const Ends& ends, Sender<Memory>& next) const {
    if (!task_.last()) {
      std::uint32_t last = row.vec[0];
      SEQPAR_UNROLL
      for (int i = 1; i < kVecs; ++i) last = row.has[i] ? row.vec[i] : last;
      if (!next.reserve(last - range_.begin + 1)) return false;
    }
    LamportPacket* in[kVecs];
    LamportPacket* out[kVecs];
    FastValues own[kVecs];
    float factor[kVecs];
    SEQPAR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      // A thread without a further vec polls its first one.
      const std::uint32_t vec = row.has[i] ? row.vec[i] : row.vec[0];
      in[i] = packetAt(ends.in, ends.inAt, vec);
      out[i] = packetAt(ends.out, ends.outAt, vec);
      own[i] = valuesOf(row.mine[i].own);
      factor[i] = decayed(task_, row.mine[i].factor);
    }
    if (task_.first()) {
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) {
        FastValues x{};
        if (task_.initial != nullptr && row.has[i]) x = valuesOf(readPacket(task_.initial + row.vec[i]));
        const FastValues after = task_.initial == nullptr ? own[i] : applied(factor[i], x, own[i]);
        Memory::storeIf(row.has[i] && !task_.last(), out[i], sendablePacketOf(after));
        writeFast<Memory>(task_, row.has[i], row.vec[i], x, after);
      }
      return true;
    }
    // Every poll executes the whole hop, without effect until the packets arrive: then the instructions are in the
    // cache.
    Wait<Memory> wait(view_, task_.before);
    SEQPAR_ROLLED
    for (;;) {
      LamportPacket packet[kVecs];
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) packet[i] = Memory::load(in[i]);
      bool live = true;
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) live = live && complete(packet[i]);
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) {
        const bool here = live && row.has[i];
        const FastValues x = valuesOf(packet[i]);
        const FastValues after = applied(factor[i], x, own[i]);
        Memory::storeIf(here && !task_.last(), out[i], sendablePacketOf(after));
        Memory::storeIf(here, in[i], absentPacket());
        writeFast<Memory>(task_, here, row.vec[i], x, after);
      }
      if (live) return true;
      if (wait.over()) return false;
    }
  }

  /// Called by one thread, after a barrier that follows all other accesses.
  SEQPAR_DEVICE void finish(FifoState in, const FifoState& out, std::uint64_t credit) const {
    if (!task_.last()) {
      FifoState& state = task_.fifo(task_.after, channel_);
      state.sent = out.sent + range_.size();
      state.credit = credit;
    }
    if (task_.first()) return;
    countReceived<Memory>(view_, task_.before, channel_, in, range_.size());
    FifoState& state = task_.fifo(task_.before, channel_);
    state.received = in.received;
    state.credited = in.credited;
  }

  const PeerView& view_;
  const FastTask& task_;
  int channel_;
  const Group& group_;
  ChannelPositions& shared_;
  VecRange range_;
};

}  // namespace seqpar
