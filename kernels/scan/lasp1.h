// LASP1, a baseline: a channel receives as much as its rings hold, then combines, then sends. Source: LASP, arXiv
// 2404.02882; states larger than the rings are sent in pieces.
#pragma once

#include "kernels/channel.h"
#include "kernels/scan/vecs.h"

namespace seqpar {

template <class Shape, class Memory, class Group>
class Lasp1Program {
 public:
  SEQPAR_DEVICE Lasp1Program(const PeerView& view, const ScanTask& task, int channel, const Group& group,
                             ChannelPositions& positions)
      : task_(task),
        group_(group),
        vecs_(task),
        range_(task.part(channel, Shape::kElements)),
        steps_(view, channel, group, positions),
        before_(task.first() ? -1 : task.peerAt[task.position - 1]),
        after_(task.last() ? -1 : task.peerAt[task.position + 1]) {}

  SEQPAR_DEVICE bool run() {
    constexpr std::uint32_t kChunk = kRingPackets / 2;
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += kChunk) {
      const VecRange chunk{begin, begin + kChunk < range_.end ? begin + kChunk : range_.end};
      const auto packetsTo = [&](int peer) { return peer == after_ ? chunk.size() : 0U; };
      const auto packetsFrom = [&](int peer) { return peer == before_ ? chunk.size() : 0U; };
      if (!steps_.reserve(packetsTo) || group_.any(!arrived(chunk))) return false;
      hop(chunk);
      if (!steps_.agreeStep(true)) return false;
      steps_.endStep(chunk.end == range_.end, packetsTo, packetsFrom);
    }
    steps_.finish();
    return true;
  }

 private:
  template <class Do>
  SEQPAR_DEVICE bool forVecs(VecRange chunk, const Do& act) const {
    SEQPAR_ROLLED
    for (std::uint32_t vec = chunk.begin + group_.thread(); vec < chunk.end; vec += group_.threads()) {
      if (!act(vec)) return false;
    }
    return true;
  }

  /// Waits for this thread's packets.
  SEQPAR_DEVICE bool arrived(VecRange chunk) const {
    if (task_.first()) return true;
    const Receiver<Memory> in = steps_.receiver(before_);
    return forVecs(chunk, [&](std::uint32_t vec) {
      LamportPacket packet = in.poll(vec - chunk.begin);
      return in.await(vec - chunk.begin, packet);
    });
  }

  SEQPAR_DEVICE void hop(VecRange chunk) const {
    forVecs(chunk, [&](std::uint32_t vec) {
      const std::uint32_t index = vec - chunk.begin;
      auto factors = vecs_.factors(vec);
      const auto own = vecs_.widen(vecs_.fetch(task_.state, vec));
      typename Vecs<Shape>::Values x;
      if (task_.first()) {
        x = vecs_.firstX(vec, factors);
      } else {
        const Receiver<Memory> in = steps_.receiver(before_);
        x = vecs_.unpack(in.poll(index));
        in.reset(index);
      }
      const auto after = Vecs<Shape>::apply(factors, x, own);
      vecs_.finish(vec, x, after);
      if (!task_.last()) steps_.sender(after_).put(index, vecs_.pack(after));
      return true;
    });
  }

  const ScanTask& task_;
  const Group& group_;
  Vecs<Shape> vecs_;
  VecRange range_;
  SteppedFifos<Memory, Group> steps_;
  int before_, after_;
};

}  // namespace seqpar
