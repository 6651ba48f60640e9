// TRANSPOSED: the vecs of a round are divided into one shard per position. Every position sends its map of a shard to
// the shard's owner. The owner scans it over all positions and sends each its x: two hops for any number of positions.
#pragma once

#include "kernels/channel.h"
#include "kernels/scan/maps.h"

namespace seqpar {

template <class Shape, class Memory, class Group>
class TransposedProgram {
 public:
  SEQPAR_DEVICE TransposedProgram(const PeerView& view, const ScanTask& task, int channel, const Group& group,
                                  ChannelPositions& positions)
      : task_(task),
        group_(group),
        vecs_(task),
        range_(task.part(channel, Shape::kElements)),
        steps_(view, channel, group, positions) {}

  SEQPAR_DEVICE bool run() {
    const std::uint32_t round = kMostTransposedShard * static_cast<std::uint32_t>(task_.positions);
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += round) {
      round_ = {begin, begin + round < range_.end ? begin + round : range_.end};
      shardVecs_ = (round_.size() + static_cast<std::uint32_t>(task_.positions) - 1) /
                   static_cast<std::uint32_t>(task_.positions);
      if (!step()) return false;
    }
    steps_.finish();
    return true;
  }

 private:
  using Raw = typename Vecs<Shape>::Raw;
  using Factors = typename Vecs<Shape>::Factors;
  using Values = typename Vecs<Shape>::Values;
  using Map = MapPackets<Shape>;

  static constexpr int kVecs = Shape::kFast ? 2 : 1;      // vecs in flight per thread
  static constexpr int kPolls = Shape::kUniform ? 4 : 1;  // packets that an owner polls together
  static_assert(MapPackets<Shape>::most(kMostTransposedShard) + kMostTransposedShard <=
                SteppedFifos<Memory, Group>::kMostPackets);

  SEQPAR_DEVICE VecRange shardOf(int position) const {
    const std::uint32_t begin = round_.begin + shardVecs_ * static_cast<std::uint32_t>(position);
    const std::uint32_t end = begin + shardVecs_;
    return {begin < round_.end ? begin : round_.end, end < round_.end ? end : round_.end};
  }
  SEQPAR_DEVICE int ownerOf(std::uint32_t vec) const { return static_cast<int>((vec - round_.begin) / shardVecs_); }

  // A position sends another position x of the sender's shard and the sender's map of the receiver's shard, in this
  // order in the FIFO, even if the map is written first.
  SEQPAR_DEVICE std::uint32_t xPackets(int from, int to) const { return to > 0 ? shardOf(from).size() : 0; }
  SEQPAR_DEVICE Map mapBetween(int from, int to) const { return Map(vecs_, shardOf(to), xPackets(from, to)); }
  SEQPAR_DEVICE std::uint32_t packetsBetween(int from, int to) const {
    if (from < 0 || to < 0 || from == to) return 0;
    // No position uses the last position's map.
    const std::uint32_t map = from + 1 == task_.positions ? 0 : Map::count(vecs_, shardOf(to), from > 0);
    return xPackets(from, to) + map;
  }

  SEQPAR_DEVICE bool step() {
    const auto packetsTo = [&](int peer) { return packetsBetween(task_.position, task_.positionOf[peer]); };
    const auto packetsFrom = [&](int peer) { return packetsBetween(task_.positionOf[peer], task_.position); };
    if (!steps_.reserve(packetsTo)) return false;
    const VecRange mine = shardOf(task_.position);
    scatter();
    const bool ok = scan(mine) && (task_.first() || take());
    if (!steps_.agreeStep(ok)) return false;
    steps_.endStep(round_.end == range_.end, packetsTo, packetsFrom, [&](const auto& warp) {
      SEQPAR_ROLLED
      for (int from = 1; from + 1 < task_.positions; ++from) {
        if (from != task_.position) mapBetween(from, task_.position).resetFactors(receiverOf(from), warp);
      }
    });
    return true;
  }

  /// Sends this position's map of all shards except its own. At position 0 this includes the hop.
  SEQPAR_DEVICE void scatter() const {
    if (task_.last()) return;
    forBatches(round_, [&](const std::uint32_t(&vec)[kVecs]) {
      Raw own[kVecs];
      Factors factors[kVecs]{};
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) {
        if (vec[i] >= round_.end || ownerOf(vec[i]) == task_.position) continue;
        own[i] = vecs_.fetch(task_.state, vec[i]);
        factors[i] = vecs_.factors(vec[i]);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) {
        const int owner = ownerOf(vec[i]);
        if (vec[i] >= round_.end || owner == task_.position) continue;
        const Map map = mapBetween(task_.position, owner);
        const CursorSender<Memory> out = senderTo(owner);
        if (!task_.first()) map.putFactors(out, vec[i], factors[i]);
        out.put(map.packetOf(vec[i]), vecs_.pack(firstOr(vec[i], own[i], factors[i])));
      }
      return true;
    });
  }

  /// The value sent for a vec: S or, at position 0, which finishes the vec here, A x_0 + S.
  SEQPAR_DEVICE Values firstOr(std::uint32_t vec, const Raw& own, Factors factors) const {
    if (!task_.first()) return vecs_.widen(own);
    return hop(vec, vecs_.firstX(vec, factors), own, factors);
  }
  SEQPAR_DEVICE Values hop(std::uint32_t vec, const Values& x, const Raw& own, const Factors& factors) const {
    const Values after = Vecs<Shape>::apply(factors, x, vecs_.widen(own));
    vecs_.finish(vec, x, after);
    return after;
  }

  /// Scans the own shard over all positions and sends them x.
  SEQPAR_DEVICE bool scan(VecRange mine) const {
    SEQPAR_ROLLED
    for (std::uint32_t vec = mine.begin + group_.thread(); vec < mine.end; vec += group_.threads()) {
      const Raw own = vecs_.fetch(task_.state, vec);
      const Factors ownFactors = vecs_.factors(vec);
      Values x{};
      SEQPAR_ROLLED
      for (int first = 0; first < task_.positions; first += kPolls) {
        LamportPacket packet[kPolls];
        Factors factors[kPolls];
        SEQPAR_UNROLL
        for (int i = 0; i < kPolls; ++i) {
          const int from = first + i;
          if (from + 1 >= task_.positions || from == task_.position) continue;
          const Receiver<Memory> in = receiverOf(from);
          const Map map = mapBetween(from, task_.position);
          packet[i] = in.poll(map.packetOf(vec));
          factors[i] = from == 0 ? Factors{} : map.pollFactors(in, vec);
        }
        SEQPAR_UNROLL
        for (int i = 0; i < kPolls; ++i) {
          const int position = first + i;
          if (position >= task_.positions) continue;
          if (position == task_.position) {
            x = task_.first() ? firstOr(vec, own, ownFactors) : hop(vec, x, own, ownFactors);
            continue;
          }
          if (position > 0) senderTo(position).put(vec - mine.begin, vecs_.pack(x));
          if (position + 1 == task_.positions) continue;
          const Receiver<Memory> in = receiverOf(position);
          const Map map = mapBetween(position, task_.position);
          if (!map.awaitFactors(in, vec, factors[i])) return false;
          if (!in.take(map.packetOf(vec), packet[i])) return false;
          x = Vecs<Shape>::apply(factors[i], x, vecs_.unpack(packet[i]));
        }
      }
    }
    return true;
  }

  /// Hops the vecs of other owners when x arrives.
  SEQPAR_DEVICE bool take() const {
    return forBatches(round_, [&](const std::uint32_t(&vec)[kVecs]) {
      Raw own[kVecs];
      Factors factors[kVecs]{};
      LamportPacket packet[kVecs];
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) {
        const int owner = ownerOf(vec[i]);
        if (vec[i] >= round_.end || owner == task_.position) continue;
        packet[i] = receiverOf(owner).poll(vec[i] - shardOf(owner).begin);
        own[i] = vecs_.fetch(task_.state, vec[i]);
        factors[i] = vecs_.factors(vec[i]);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) {
        const int owner = ownerOf(vec[i]);
        if (vec[i] >= round_.end || owner == task_.position) continue;
        if (!receiverOf(owner).take(vec[i] - shardOf(owner).begin, packet[i])) return false;
        hop(vec[i], vecs_.unpack(packet[i]), own[i], factors[i]);
      }
      return true;
    });
  }

  /// Calls act(vecs) for batches of this thread's vecs; act must skip those past the end.
  template <class Act>
  SEQPAR_DEVICE bool forBatches(VecRange vecs, const Act& act) const {
    const auto threads = static_cast<std::uint32_t>(group_.threads());
    SEQPAR_ROLLED
    for (std::uint32_t begin = vecs.begin + group_.thread(); begin < vecs.end; begin += threads * kVecs) {
      std::uint32_t vec[kVecs];
      SEQPAR_UNROLL
      for (int i = 0; i < kVecs; ++i) vec[i] = begin + threads * static_cast<std::uint32_t>(i);
      if (!act(vec)) return false;
    }
    return true;
  }

  SEQPAR_DEVICE CursorSender<Memory> senderTo(int position) const { return steps_.sender(task_.peerAt[position]); }
  SEQPAR_DEVICE Receiver<Memory> receiverOf(int position) const { return steps_.receiver(task_.peerAt[position]); }

  const ScanTask& task_;
  const Group& group_;
  Vecs<Shape> vecs_;
  VecRange range_;
  SteppedFifos<Memory, Group> steps_;
  VecRange round_;
  std::uint32_t shardVecs_ = 1;
};

}  // namespace seqpar
