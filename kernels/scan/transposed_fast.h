// TRANSPOSED of fast vecs without flags, one vec per thread, in one round: every position sends its map of a shard to
// the shard's owner. The owner scans it over all positions and sends each its x. The wire format is that of
// transposed.h.
#pragma once

#include "kernels/scan/maps.h"
#include "kernels/scan/peer_fifos.h"

namespace seqpar {

template <class Memory, class Group>
class FastTransposedProgram {
 public:
  SEQPAR_DEVICE FastTransposedProgram(const PeerView& view, const FastTask& task, int channel, const Group& group,
                                      ChannelPositions& positions)
      : view_(view),
        task_(task),
        group_(group),
        cursors_(view, task, channel, group, positions),
        range_(task.part(channel)),
        vec_(range_.begin + static_cast<std::uint32_t>(group.thread())),
        shardVecs_((range_.size() + static_cast<std::uint32_t>(task.positions) - 1) /
                   static_cast<std::uint32_t>(task.positions)) {}

  /// Whether channels of `threads` threads can process their parts.
  static bool fits(const ScanTask& task, std::uint32_t threads) {
    return task.part(0, 4).size() <= (threads < kMostTransposedShard ? threads : kMostTransposedShard);
  }

  /// Returns false on timeout.
  SEQPAR_DEVICE bool run() {
    const bool has = vec_ < range_.end;
    const FastVec mine = has ? fetched(task_, vec_) : FastVec{};
    const auto packets = [&](int from, int to) { return packetsBetween(from, to); };
    if (!cursors_.open(packets)) return false;
    const bool ok = !has || exchange(valuesOf(mine.own), decayed(task_, mine.factor));
    if (group_.any(!ok)) return false;
    const VecRange shard = shardOf(task_.position);
    cursors_.close(packets, factorPackets(shard),
                   [&](int from) { return xPackets(from, task_.position) + shard.size(); });
    return true;
  }

 private:
  static constexpr int kPolls = 4;  // packets that an owner polls together

  SEQPAR_DEVICE VecRange shardOf(int position) const {
    const std::uint32_t begin = range_.begin + shardVecs_ * static_cast<std::uint32_t>(position);
    const std::uint32_t end = begin + shardVecs_;
    return {begin < range_.end ? begin : range_.end, end < range_.end ? end : range_.end};
  }

  // A position sends another position x of the sender's shard, then the sender's map of the receiver's shard.
  SEQPAR_DEVICE std::uint32_t xPackets(int from, int to) const { return to > 0 ? shardOf(from).size() : 0; }
  SEQPAR_DEVICE std::uint32_t factorPackets(VecRange shard) const {
    if (shard.size() == 0) return 0;
    return (factorOf(task_, shard.end - 1) - factorOf(task_, shard.begin) + 4) / 4;
  }
  SEQPAR_DEVICE std::uint32_t packetsBetween(int from, int to) const {
    const VecRange shard = shardOf(to);
    // No position uses the last position's map, and position 0 has no predecessor.
    const std::uint32_t map = from + 1 == task_.positions ? 0 : shard.size() + (from > 0 ? factorPackets(shard) : 0);
    return xPackets(from, to) + map;
  }

  SEQPAR_DEVICE bool exchange(const FastValues& own, float factor) const {
    const auto owner = static_cast<int>((vec_ - range_.begin) / shardVecs_);
    FastValues x{};
    FastValues state = own;
    if (task_.first() && task_.initial != nullptr) {
      x = valuesOf(readPacket(task_.initial + vec_));
      state = applied(factor, x, own);
    }
    if (owner == task_.position) return scan(own, factor, x, state);
    if (!task_.last()) sendMap(owner, state, factor);
    if (!task_.first()) return take(owner, own, factor);
    writeFast<Memory>(task_, true, vec_, x, state);
    return true;
  }

  SEQPAR_DEVICE void sendMap(int owner, const FastValues& state, float factor) const {
    const VecRange shard = shardOf(owner);
    const std::uint32_t first = xPackets(task_.position, owner);
    Memory::store(cursors_.outPacket(owner, first + vec_ - shard.begin), sendablePacketOf(state));
    const std::uint32_t number = factorOf(task_, vec_);
    if (task_.first() || (number * task_.span.divisor() != 4 * vec_ && vec_ != shard.begin)) return;
    const std::uint32_t word = number - factorOf(task_, shard.begin);
    Memory::store(cursors_.outWord(owner, first + shard.size(), word), sendable(asBits(factor), kAbsentAsFloat));
  }

  /// A vec of another position's shard: waits for x.
  SEQPAR_DEVICE bool take(int owner, const FastValues& own, float factor) const {
    LamportPacket* const in = cursors_.inPacket(owner, vec_ - shardOf(owner).begin);
    Wait<Memory> wait(view_, task_.peerAt[owner]);
    SEQPAR_ROLLED
    for (;;) {
      const LamportPacket packet = Memory::load(in);
      const bool live = complete(packet);
      const FastValues x = valuesOf(packet);
      Memory::storeIf(live, in, absentPacket());
      writeFast<Memory>(task_, live, vec_, x, applied(factor, x, own));
      if (live) return true;
      if (wait.over()) return false;
    }
  }

  /// A vec of the own shard. `x` and `state`: at position 0, x_0 and the hop from it.
  SEQPAR_DEVICE bool scan(const FastValues& own, float factor, FastValues x, const FastValues& state) const {
    SEQPAR_ROLLED
    for (int first = 0; first < task_.positions; first += kPolls) {
      if (!scanSome(first, own, factor, state, x)) return false;
    }
    return true;
  }

  // Every poll executes the whole scan, without effect until the packets arrive: then the instructions are in the
  // cache.
  SEQPAR_DEVICE bool scanSome(int first, const FastValues& own, float factor, const FastValues& state,
                              FastValues& x) const {
    const VecRange shard = shardOf(task_.position);
    const std::uint32_t index = vec_ - shard.begin;
    const std::uint32_t word = factorOf(task_, vec_) - factorOf(task_, shard.begin);
    LamportPacket* slot[kPolls];
    std::uint32_t* factorAt[kPolls];
    SEQPAR_UNROLL
    for (int i = 0; i < kPolls; ++i) {
      slot[i] = nullptr;
      factorAt[i] = nullptr;
      const int from = first + i;
      if (!sendsMap(from)) continue;
      const std::uint32_t begin = xPackets(from, task_.position);
      slot[i] = cursors_.inPacket(from, begin + index);
      // The first map has no factor: any word of it serves.
      factorAt[i] = from == 0 ? slot[i]->word : cursors_.inWord(from, begin + shard.size(), word);
    }
    Wait<Memory> wait(view_, task_.peerAt[first]);
    SEQPAR_ROLLED
    for (;;) {
      LamportPacket packet[kPolls];
      std::uint32_t bits[kPolls];
      SEQPAR_UNROLL
      for (int i = 0; i < kPolls; ++i) {
        packet[i] = slot[i] == nullptr ? LamportPacket{} : Memory::load(slot[i]);
        bits[i] = slot[i] == nullptr ? 0 : Memory::load(factorAt[i]);
      }
      bool live = true;
      SEQPAR_UNROLL
      for (int i = 0; i < kPolls; ++i) live = live && complete(packet[i]) && bits[i] != kAbsent;
      FastValues y = x;
      SEQPAR_UNROLL
      for (int i = 0; i < kPolls; ++i) {
        const int at = first + i;
        if (at >= task_.positions) continue;
        if (at == task_.position) {
          const FastValues after = at == 0 ? state : applied(factor, y, own);
          writeFast<Memory>(task_, live, vec_, y, after);
          y = after;
          continue;
        }
        if (at > 0) Memory::storeIf(live, cursors_.outPacket(at, index), sendablePacketOf(y));
        if (slot[i] == nullptr) continue;
        y = applied(at == 0 ? 0.0F : asFloat(bits[i]), y, valuesOf(packet[i]));
        Memory::storeIf(live, slot[i], absentPacket());
      }
      if (live) {
        x = y;
        return true;
      }
      const auto missing = [&] {
        int from = first;
        for (int i = 0; i < kPolls; ++i) {
          if (slot[i] != nullptr && (!complete(packet[i]) || bits[i] == kAbsent)) from = first + i;
        }
        return static_cast<int>(task_.peerAt[from]);
      };
      if (wait.over(missing)) return false;
    }
  }

  SEQPAR_DEVICE bool sendsMap(int from) const { return from + 1 < task_.positions && from != task_.position; }

  const PeerView& view_;
  const FastTask& task_;
  const Group& group_;
  PeerFifos<Memory, Group> cursors_;
  VecRange range_;
  std::uint32_t vec_;
  std::uint32_t shardVecs_;
};

}  // namespace seqpar
