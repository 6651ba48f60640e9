// ONESHOT: every position sends its map to all later positions, and each folds the maps that it receives, in order.
// LASP2, a baseline, uses an all-gather instead: maps are sent to all positions, and dropped if unused. Source: LASP-2,
// arXiv 2502.07563.
#pragma once

#include "kernels/channel.h"
#include "kernels/scan/maps.h"

namespace seqpar {

/// In steps of one vec per thread.
template <class Shape, class Memory, class Group, bool Gather>
class OneshotProgram {
 public:
  SEQPAR_DEVICE OneshotProgram(const PeerView& view, const ScanTask& task, int channel, const Group& group,
                               ChannelPositions& positions)
      : task_(task),
        group_(group),
        vecs_(task),
        range_(task.part(channel, Shape::kElements)),
        mine_(fetch(range_.begin + static_cast<std::uint32_t>(group.thread()))),
        steps_(view, channel, group, positions) {}

  SEQPAR_DEVICE bool run() {
    const std::uint32_t row = rowVecs();
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += row) {
      if (!step({begin, begin + row < range_.end ? begin + row : range_.end})) return false;
    }
    steps_.finish();
    return true;
  }

 private:
  using Raw = typename Vecs<Shape>::Raw;
  using Factors = typename Vecs<Shape>::Factors;
  using Values = typename Vecs<Shape>::Values;
  using Map = MapPackets<Shape>;

  static constexpr int kPolls = Shape::kFast ? 4 : 1;  // packets that a thread polls together
  static_assert(MapPackets<Shape>::most(kMostOneshotRow) <= SteppedFifos<Memory, Group>::kMostPackets);

  SEQPAR_DEVICE std::uint32_t rowVecs() const {
    const auto threads = static_cast<std::uint32_t>(group_.threads());
    return threads < kMostOneshotRow ? threads : kMostOneshotRow;
  }

  /// This rank's map of a vec, loaded but not used yet.
  struct Fetched {
    Raw state;
    Factors factors;
  };
  SEQPAR_DEVICE Fetched fetch(std::uint32_t vec) const {
    if (vec >= range_.end) return {};
    return {vecs_.fetch(task_.state, vec), vecs_.factorsAt(vec)};
  }

  /// Whether position `from` sends to position `to`.
  SEQPAR_DEVICE static bool sends(int from, int to) {
    return from >= 0 && to >= 0 && (Gather ? from != to : from < to);
  }

  SEQPAR_DEVICE bool step(VecRange vecs) {
    const Map map(vecs_, vecs, 0);
    const std::uint32_t absolute = Map::count(vecs_, vecs, false);
    const std::uint32_t relative = Map::count(vecs_, vecs, true);
    const auto packets = [&](int from, int to) { return !sends(from, to) ? 0 : from == 0 ? absolute : relative; };
    const auto packetsTo = [&](int peer) { return packets(task_.position, task_.positionOf[peer]); };
    const auto packetsFrom = [&](int peer) { return packets(task_.positionOf[peer], task_.position); };
    if (!steps_.reserve(packetsTo)) return false;
    const std::uint32_t vec = vecs.begin + static_cast<std::uint32_t>(group_.thread());
    if (!steps_.agreeStep(vec >= vecs.end || exchange(map, vec))) return false;
    steps_.endStep(vecs.end == range_.end, packetsTo, packetsFrom, [&](const auto& warp) {
      SEQPAR_ROLLED
      for (int from = 1; from < task_.positions; ++from) {
        if (sends(from, task_.position)) map.resetFactors(receiverOf(from), warp);
      }
    });
    return true;
  }

  SEQPAR_DEVICE bool exchange(const Map& map, std::uint32_t vec) {
    const Values own = vecs_.widen(mine_.state);
    Factors factors = vecs_.decayed(vec, mine_.factors);
    if (task_.first()) {
      const Values x = vecs_.firstX(vec, factors);
      const Values after = Vecs<Shape>::apply(factors, x, own);
      push(map, vec, after, factors);
      vecs_.finish(vec, x, after);
    } else {
      push(map, vec, own, factors);
    }
    mine_ = fetch(vec + rowVecs());
    return (task_.first() || fold(map, vec, own, factors)) && (!Gather || drop(map, vec));
  }

  SEQPAR_DEVICE void push(const Map& map, std::uint32_t vec, const Values& state, const Factors& factors) const {
    const LamportPacket packet = vecs_.pack(state);
    const auto words = map.words(vec);
    SEQPAR_ROLLED
    for (int to = Gather ? 0 : task_.position + 1; to < task_.positions; ++to) {
      if (!sends(task_.position, to)) continue;
      const CursorSender<Memory> out = steps_.sender(task_.peerAt[to]);
      out.put(map.packetOf(vec), packet);
      if (!task_.first()) Map::putFactors(out, words, factors);
    }
  }

  /// Computes x of this position, and hops.
  SEQPAR_DEVICE bool fold(const Map& map, std::uint32_t vec, const Values& own, const Factors& ownFactors) const {
    Values x{};
    SEQPAR_ROLLED
    for (int first = 0; first < task_.position; first += kPolls) {
      LamportPacket packet[kPolls];
      Factors factors[kPolls];
      SEQPAR_UNROLL
      for (int i = 0; i < kPolls; ++i) {
        const int from = first + i;
        if (from >= task_.position) continue;
        const Receiver<Memory> in = receiverOf(from);
        packet[i] = in.poll(map.packetOf(vec));
        factors[i] = from == 0 ? Factors{} : map.pollFactors(in, vec);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kPolls; ++i) {
        const int from = first + i;
        if (from >= task_.position) continue;
        const Receiver<Memory> in = receiverOf(from);
        if (!map.awaitFactors(in, vec, factors[i]) || !in.take(map.packetOf(vec), packet[i])) return false;
        x = Vecs<Shape>::apply(factors[i], x, vecs_.unpack(packet[i]));
      }
    }
    vecs_.finish(vec, x, Vecs<Shape>::apply(ownFactors, x, own));
    return true;
  }

  /// Receives and drops the maps of later positions.
  SEQPAR_DEVICE bool drop(const Map& map, std::uint32_t vec) const {
    const std::uint32_t index = map.packetOf(vec);
    SEQPAR_ROLLED
    for (int from = task_.position + 1; from < task_.positions; ++from) {
      const Receiver<Memory> in = receiverOf(from);
      Factors factors = map.pollFactors(in, vec);
      LamportPacket packet = in.poll(index);
      if (!map.awaitFactors(in, vec, factors) || !in.take(index, packet)) return false;
    }
    return true;
  }

  SEQPAR_DEVICE Receiver<Memory> receiverOf(int position) const { return steps_.receiver(task_.peerAt[position]); }

  const ScanTask& task_;
  const Group& group_;
  Vecs<Shape> vecs_;
  VecRange range_;
  Fetched mine_;
  SteppedFifos<Memory, Group> steps_;
};

}  // namespace seqpar
