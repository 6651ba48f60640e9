// ONESHOT of fast vecs without flags, one vec per thread: every position sends its map to all later positions, and each
// folds the maps that it receives, in order. The wire format is that of oneshot.h.
#pragma once

#include "kernels/scan/maps.h"
#include "kernels/scan/peer_fifos.h"

namespace seqpar {

template <class Memory, class Group>
class FastOneshotProgram {
 public:
  SEQPAR_DEVICE FastOneshotProgram(const PeerView& view, const FastTask& task, int channel, const Group& group,
                                   ChannelPositions& positions)
      : view_(view),
        task_(task),
        group_(group),
        cursors_(view, task, channel, group, positions),
        range_(task.part(channel)),
        vec_(range_.begin + static_cast<std::uint32_t>(group.thread())),
        firstFactor_(factorOf(task, range_.begin)),
        factors_(factorOf(task, range_.end - 1) - firstFactor_ + 1) {}

  /// Whether a channel of `threads` threads can process its part.
  static bool fits(const ScanTask& task, std::uint32_t threads) {
    return task.part(0, 4).size() <= (threads < kMostOneshotRow ? threads : kMostOneshotRow);
  }

  /// Returns false on timeout.
  SEQPAR_DEVICE bool run() {
    const bool has = vec_ < range_.end;
    const FastVec mine = has ? fetched(task_, vec_) : FastVec{};
    const auto packetsBetween = [&](int from, int to) { return from < to ? packets(from) : 0U; };
    if (!cursors_.open(packetsBetween)) return false;
    const bool ok = !has || exchange(valuesOf(mine.own), decayed(task_, mine.factor), factorOf(task_, vec_));
    if (group_.any(!ok)) return false;
    cursors_.close(packetsBetween, (factors_ + 3) / 4, [&](int) { return range_.size(); });
    return true;
  }

 private:
  static constexpr int kPolls = 4;  // packets that a thread polls together

  /// Packets that position `from` sends to each later one. Position 0 has no predecessor and sends no factors.
  SEQPAR_DEVICE std::uint32_t packets(int from) const { return range_.size() + (from == 0 ? 0 : (factors_ + 3) / 4); }

  SEQPAR_DEVICE bool exchange(const FastValues& own, float factor, std::uint32_t number) const {
    const std::uint32_t word = number - firstFactor_;
    FastValues x{};
    FastValues state = own;
    if (task_.first()) {
      if (task_.initial != nullptr) x = valuesOf(readPacket(task_.initial + vec_));
      if (task_.initial != nullptr) state = applied(factor, x, own);
    }
    push(state, factor, word, number * task_.span.divisor() == 4 * vec_ || group_.thread() == 0);
    if (!task_.first()) return fold(own, factor, word);
    writeFast<Memory>(task_, true, vec_, x, state);
    return true;
  }

  /// `sends`: this thread sends the factor.
  SEQPAR_DEVICE void push(const FastValues& state, float factor, std::uint32_t word, bool sends) const {
    const LamportPacket packet = sendablePacketOf(state);
    const std::uint32_t bits = sendable(asBits(factor), kAbsentAsFloat);
    sends = sends && !task_.first();
    // The position with the most maps to fold is first.
    SEQPAR_ROLLED
    for (int to = task_.positions - 1; to > task_.position; --to) {
      Memory::store(cursors_.outPacket(to, static_cast<std::uint32_t>(group_.thread())), packet);
      if (sends) Memory::store(cursors_.outWord(to, range_.size(), word), bits);
    }
  }

  /// Computes x of this position, and hops.
  SEQPAR_DEVICE bool fold(const FastValues& own, float factor, std::uint32_t word) const {
    FastValues x{};
    SEQPAR_ROLLED
    for (int first = 0; first < task_.position; first += kPolls) {
      if (!foldSome(first, word, own, factor, x)) return false;
    }
    return true;
  }

  // Every poll executes the whole fold, without effect until the packets arrive: then the instructions are in the
  // cache.
  SEQPAR_DEVICE bool foldSome(int first, std::uint32_t word, const FastValues& own, float factor, FastValues& x) const {
    LamportPacket* slot[kPolls];
    std::uint32_t* factorAt[kPolls];
    SEQPAR_UNROLL
    for (int i = 0; i < kPolls; ++i) {
      const int from = first + i < task_.position ? first + i : first;
      slot[i] = cursors_.inPacket(from, static_cast<std::uint32_t>(group_.thread()));
      // The first map has no factor: any word of it serves.
      factorAt[i] = from == 0 ? slot[i]->word : cursors_.inWord(from, range_.size(), word);
    }
    const bool end = first + kPolls >= task_.position;
    Wait<Memory> wait(view_, task_.peerAt[first]);
    SEQPAR_ROLLED
    for (;;) {
      LamportPacket packet[kPolls];
      std::uint32_t bits[kPolls];
      SEQPAR_UNROLL
      for (int i = 0; i < kPolls; ++i) {
        packet[i] = Memory::load(slot[i]);
        bits[i] = Memory::load(factorAt[i]);
      }
      bool live = true;
      FastValues y = x;
      SEQPAR_UNROLL
      for (int i = 0; i < kPolls; ++i) {
        live = live && complete(packet[i]) && bits[i] != kAbsent;
        const float c = first + i == 0 ? 0.0F : asFloat(bits[i]);
        if (first + i < task_.position) y = applied(c, y, valuesOf(packet[i]));
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kPolls; ++i) {
        Memory::storeIf(live && first + i < task_.position, slot[i], absentPacket());
      }
      writeFast<Memory>(task_, live && end, vec_, y, applied(factor, y, own));
      if (live) {
        x = y;
        return true;
      }
      const auto missing = [&] {
        int from = first;
        for (int i = 0; i < kPolls; ++i) {
          if (!complete(packet[i]) || bits[i] == kAbsent) from = first + i < task_.position ? first + i : first;
        }
        return static_cast<int>(task_.peerAt[from]);
      };
      if (wait.over(missing)) return false;
    }
  }

  const PeerView& view_;
  const FastTask& task_;
  const Group& group_;
  PeerFifos<Memory, Group> cursors_;
  VecRange range_;
  std::uint32_t vec_;
  std::uint32_t firstFactor_, factors_;
};

}  // namespace seqpar
