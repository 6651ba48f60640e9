// DOUBLING: in each round every position prepends the map known to an earlier position. Source: Traeff, exclusive scan
// with 123-doubling, arXiv 2507.04785.
#pragma once

#include "kernels/channel.h"
#include "kernels/scan/doubling_rounds.h"
#include "kernels/scan/maps.h"

namespace seqpar {

template <class Shape, class Memory, class Group>
class DoublingProgram {
 public:
  SEQPAR_DEVICE DoublingProgram(const PeerView& view, const ScanTask& task, int channel, const Group& group,
                                ChannelPositions& positions)
      : task_(task),
        group_(group),
        vecs_(task),
        range_(task.part(channel, Shape::kElements)),
        steps_(view, channel, group, positions) {}

  SEQPAR_DEVICE bool run() {
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += kRow) {
      if (!step({begin, begin + kRow < range_.end ? begin + kRow : range_.end})) return false;
    }
    steps_.finish();
    return true;
  }

 private:
  using Factors = typename Vecs<Shape>::Factors;
  using Values = typename Vecs<Shape>::Values;
  using Map = MapPackets<Shape>;

  static constexpr std::uint32_t kRow = 512;  // vecs of a step
  static_assert(MapPackets<Shape>::most(kRow) <= SteppedFifos<Memory, Group>::kMostPackets);

  /// The packets from one position to another: two positions exchange packets in at most one round.
  SEQPAR_DEVICE std::uint32_t packetsBetween(VecRange vecs, int from, int to) const {
    if (from < 0 || to < 0) return 0;
    SEQPAR_ROLLED
    for (int number = 0; hasDoublingRound(number, task_.positions); ++number) {
      const DoublingRound round = doublingRound(number);
      if (to - from == round.skip && round.sends(from, task_.positions))
        return Map::count(vecs_, vecs, !round.isAbsolute(from));
    }
    return 0;
  }

  SEQPAR_DEVICE bool step(VecRange vecs) {
    const Map map(vecs_, vecs, 0);
    const auto packetsTo = [&](int peer) { return packetsBetween(vecs, task_.position, task_.positionOf[peer]); };
    const auto packetsFrom = [&](int peer) { return packetsBetween(vecs, task_.positionOf[peer], task_.position); };
    if (!steps_.reserve(packetsTo)) return false;
    bool ok = true;
    SEQPAR_ROLLED
    for (std::uint32_t vec = vecs.begin + group_.thread(); ok && vec < vecs.end; vec += group_.threads()) {
      ok = scan(map, vec);
    }
    if (!steps_.agreeStep(ok)) return false;
    steps_.endStep(vecs.end == range_.end, packetsTo, packetsFrom, [&](const auto& warp) {
      SEQPAR_ROLLED
      for (int number = 0; hasDoublingRound(number, task_.positions); ++number) {
        const DoublingRound round = doublingRound(number);
        const int from = task_.position - round.skip;
        if (round.sends(from, task_.positions) && !round.isAbsolute(from)) map.resetFactors(receiverOf(from), warp);
      }
    });
    return true;
  }

  SEQPAR_DEVICE bool scan(const Map& map, std::uint32_t vec) const {
    const auto own = vecs_.fetch(task_.state, vec);
    vecs_.template prefetch<Memory>(vec + kRow, range_.end);
    Factors ownFactors = vecs_.factors(vec);
    Values ownState = vecs_.widen(own);
    if (task_.first()) {
      const Values x = vecs_.firstX(vec, ownFactors);
      ownState = vecs_.apply(ownFactors, x, ownState);
      vecs_.finish(vec, x, ownState);
    }
    // The map of the positions before this one, as far as known.
    Values before{};
    Factors beforeFactors{};
    SEQPAR_ROLLED
    for (int number = 0; hasDoublingRound(number, task_.positions); ++number) {
      const DoublingRound round = doublingRound(number);
      if (round.sends(task_.position, task_.positions)) {
        const CursorSender<Memory> out = steps_.sender(task_.peerAt[task_.position + round.skip]);
        const bool alone = number == 0 || task_.first();
        const Values state = !round.own ? before : alone ? ownState : vecs_.apply(ownFactors, before, ownState);
        if (!round.isAbsolute(task_.position)) {
          map.putFactors(out, vec,
                         !round.own ? beforeFactors
                         : alone    ? ownFactors
                                    : vecs_.compose(ownFactors, beforeFactors));
        }
        out.put(map.packetOf(vec), vecs_.pack(state));
      }
      const int from = task_.position - round.skip;
      if (!round.sends(from, task_.positions)) continue;
      const Receiver<Memory> in = receiverOf(from);
      LamportPacket packet = in.poll(map.packetOf(vec));
      Factors factors{};
      if (!round.isAbsolute(from)) {
        factors = map.pollFactors(in, vec);
        if (!map.awaitFactors(in, vec, factors)) return false;
      }
      if (!in.take(map.packetOf(vec), packet)) return false;
      const Values state = vecs_.unpack(packet);
      before = number == 0 ? state : vecs_.apply(beforeFactors, state, before);
      beforeFactors = number == 0 ? factors : vecs_.compose(beforeFactors, factors);
    }
    if (!task_.first()) vecs_.finish(vec, before, vecs_.apply(ownFactors, before, ownState));
    return true;
  }

  SEQPAR_DEVICE Receiver<Memory> receiverOf(int position) const { return steps_.receiver(task_.peerAt[position]); }

  const ScanTask& task_;
  const Group& group_;
  Vecs<Shape> vecs_;
  VecRange range_;
  SteppedFifos<Memory, Group> steps_;
};

}  // namespace seqpar
