// CHAIN: every packet passes through the positions independently: received from the predecessor, hopped, and sent on at
// once. Source: ZeCO, arXiv 2507.01004, All-Scan, with packets as blocks.
#pragma once

#include "kernels/channel.h"
#include "kernels/scan/vecs.h"

namespace seqpar {

/// One channel's part. Its threads process rows of vecs; `kVecs`: vecs of a row that a thread has in flight.
template <class Shape, class Memory, class Group, int kVecs>
class ChainProgram {
 public:
  SEQPAR_DEVICE ChainProgram(const PeerView& view, const ScanTask& task, int channel, const Group& group,
                             ChannelPositions& shared)
      : view_(view),
        task_(task),
        channel_(channel),
        group_(group),
        shared_(shared),
        vecs_(task),
        range_(task.part(channel, Shape::kElements)),
        before_(task.first() ? view.self : task.peerAt[task.position - 1]),
        after_(task.last() ? view.self : task.peerAt[task.position + 1]) {}

  /// Returns false on timeout.
  SEQPAR_DEVICE bool run() {
    const auto row = static_cast<std::uint32_t>(group_.threads()) * kVecs;
    Fetched mine = fetch(range_.begin);
    FifoState in = alignedToCall(*fifoState(view_, before_, channel_));
    const FifoState out = alignedToCall(*fifoState(view_, after_, channel_));
    const Receiver<Memory> previous(view_, before_, channel_, in.received);
    Sender<Memory> next(view_, after_, channel_, out.sent, out.credit);

    SpanCredit<Memory, Group> credit(view_, before_, channel_, group_, shared_, in, task_.first() ? 0 : range_.size());
    bool ok = true;
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; ok && begin < range_.end; begin += row) {
      ok = hopRow(begin, mine, previous, next);
      mine = fetch(begin + row);
      ok = credit.through(ok, (begin + row < range_.end ? begin + row : range_.end) - range_.begin);
    }
    if (group_.any(!ok)) return false;
    if (group_.thread() != 0) return true;
    if (!task_.last()) {
      FifoState& state = *fifoState(view_, after_, channel_);
      state.sent = out.sent + range_.size();
      state.credit = next.credit();
    }
    if (!task_.first()) {
      in.credited = credit.credited();
      countReceived<Memory>(view_, before_, channel_, in, range_.size());
      FifoState& state = *fifoState(view_, before_, channel_);
      state.received = in.received;
      state.credited = in.credited;
    }
    return true;
  }

 private:
  using Raw = typename Vecs<Shape>::Raw;
  using Factors = typename Vecs<Shape>::Factors;
  using Values = typename Vecs<Shape>::Values;

  static constexpr int kAhead = 2;  // rows

  /// This rank's part of a thread's vecs of a row, loaded but not used yet.
  struct Fetched {
    Raw own[kVecs];
    Factors factors[kVecs];
  };

  SEQPAR_DEVICE std::uint32_t vecOf(std::uint32_t begin, int i) const {
    return begin + static_cast<std::uint32_t>(group_.threads() * i + group_.thread());
  }

  SEQPAR_DEVICE Fetched fetch(std::uint32_t begin) const {
    Fetched mine{};
    SEQPAR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      const std::uint32_t vec = vecOf(begin, i);
      if (vec >= range_.end) continue;
      mine.own[i] = vecs_.fetch(task_.state, vec);
      mine.factors[i] = vecs_.factorsAt(vec);
      vecs_.template prefetch<Memory>(vecOf(begin, i + kAhead * kVecs), range_.end);
    }
    return mine;
  }

  SEQPAR_DEVICE bool hopRow(std::uint32_t begin, const Fetched& mine, const Receiver<Memory>& previous,
                            Sender<Memory>& next) const {
    LamportPacket packet[kVecs];
    SEQPAR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      const std::uint32_t vec = vecOf(begin, i);
      if (vec < range_.end && !task_.first()) packet[i] = previous.poll(vec - range_.begin);
    }
    SEQPAR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      const std::uint32_t vec = vecOf(begin, i);
      if (vec < range_.end && !hop(vec, mine.own[i], mine.factors[i], packet[i], previous, next)) return false;
    }
    return true;
  }

  SEQPAR_DEVICE bool hop(std::uint32_t vec, const Raw& own, const Factors& credited, LamportPacket& packet,
                         const Receiver<Memory>& previous, Sender<Memory>& next) const {
    const std::uint32_t index = vec - range_.begin;
    if (!task_.last() && !next.reserve(index + 1)) return false;
    if (!task_.first() && !previous.await(index, packet)) return false;
    Factors factors = vecs_.decayed(vec, credited);
    const Values x = task_.first() ? vecs_.firstX(vec, factors) : vecs_.unpack(packet);
    const Values after = Vecs<Shape>::apply(factors, x, vecs_.widen(own));
    if (!task_.last()) next.put(index, vecs_.pack(after));
    if (!task_.first()) previous.reset(index);
    vecs_.finish(vec, x, after);
    return true;
  }

  const PeerView& view_;
  const ScanTask& task_;
  int channel_;
  const Group& group_;
  ChannelPositions& shared_;
  Vecs<Shape> vecs_;
  VecRange range_;
  int before_, after_;
};

}  // namespace seqpar
