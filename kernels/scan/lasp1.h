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
    constexpr std::uint32_t kPiece = kRingPackets / 2;
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += kPiece) {
      const VecRange piece{begin, begin + kPiece < range_.end ? begin + kPiece : range_.end};
      const auto packetsTo = [&](int peer) { return peer == after_ ? piece.size() : 0U; };
      const auto packetsFrom = [&](int peer) { return peer == before_ ? piece.size() : 0U; };
      if (!steps_.reserve(packetsTo) || group_.any(!arrived(piece))) return false;
      hop(piece);
      if (!steps_.agreeStep(true)) return false;
      steps_.endStep(piece.end == range_.end, packetsTo, packetsFrom);
    }
    steps_.finish();
    return true;
  }

 private:
  template <class Do>
  SEQPAR_DEVICE bool forVecs(VecRange piece, const Do& act) const {
    SEQPAR_ROLLED
    for (std::uint32_t vec = piece.begin + group_.thread(); vec < piece.end; vec += group_.threads()) {
      if (!act(vec)) return false;
    }
    return true;
  }

  /// Waits for this thread's packets.
  SEQPAR_DEVICE bool arrived(VecRange piece) const {
    if (task_.first()) return true;
    const Receiver<Memory> in = steps_.receiver(before_);
    return forVecs(piece, [&](std::uint32_t vec) {
      LamportPacket packet = in.look(vec - piece.begin);
      return in.await(vec - piece.begin, packet);
    });
  }

  SEQPAR_DEVICE void hop(VecRange piece) const {
    forVecs(piece, [&](std::uint32_t vec) {
      const std::uint32_t index = vec - piece.begin;
      auto factors = vecs_.factors(vec);
      const auto own = vecs_.widen(vecs_.fetch(task_.state, vec));
      typename Vecs<Shape>::Values x;
      if (task_.first()) {
        x = vecs_.firstX(vec, factors);
      } else {
        const Receiver<Memory> in = steps_.receiver(before_);
        x = vecs_.unpack(in.look(index));
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
