// ONESHOT of plain cells without flags, a cell a thread: every position sends its map to all later ones, and each folds
// what it gets, in order. On the wire as in oneshot_lane.h.
#pragma once

#include "scan/maps.h"
#include "scan/plain_ports.h"

namespace seqpar {

template <class Memory, class Group>
class OneshotPlainLane {
 public:
  SEQPAR_LANE OneshotPlainLane(const PeerView& view, const PlainTask& task, int lane, const Group& group,
                               LanePositions& positions)
      : view_(view),
        task_(task),
        group_(group),
        ports_(view, task, lane, group, positions),
        range_(task.part(lane)),
        cell_(range_.begin + static_cast<std::uint32_t>(group.thread())),
        firstFactor_(factorOf(task, range_.begin)),
        factors_(factorOf(task, range_.end - 1) - firstFactor_ + 1) {}

  /// Whether a lane of so many threads can do a lane's part.
  static bool fits(const ScanTask& task, std::uint32_t threads) {
    return task.part(0, 4).size() <= (threads < kMostOneshotRow ? threads : kMostOneshotRow);
  }

  /// False: gave up.
  SEQPAR_LANE bool run() {
    const bool has = cell_ < range_.end;
    const PlainCell mine = has ? fetched(task_, cell_) : PlainCell{};
    const auto linesBetween = [&](int from, int to) { return from < to ? lines(from) : 0U; };
    if (!ports_.open(linesBetween)) return false;
    const bool ok = !has || exchange(valuesOf(mine.own), decayed(task_, mine.factor), factorOf(task_, cell_));
    if (group_.any(!ok)) return false;
    ports_.close(linesBetween, (factors_ + 3) / 4, [&](int) { return range_.size(); });
    return true;
  }

 private:
  static constexpr int kLooks = 4;  // lines that a thread looks at together

  /// Lines that position `from` sends to each later one: nothing comes before position 0, which sends no factors.
  SEQPAR_LANE std::uint32_t lines(int from) const { return range_.size() + (from == 0 ? 0 : (factors_ + 3) / 4); }

  SEQPAR_LANE bool exchange(const PlainValues& own, float factor, std::uint32_t number) const {
    const std::uint32_t word = number - firstFactor_;
    PlainValues x{};
    PlainValues state = own;
    if (task_.first()) {
      if (task_.initial != nullptr) x = valuesOf(readLine(task_.initial + cell_));
      if (task_.initial != nullptr) state = applied(factor, x, own);
    }
    push(state, factor, word, number * task_.span.divisor() == 4 * cell_ || group_.thread() == 0);
    if (!task_.first()) return fold(own, factor, word);
    writePlain<Memory>(task_, true, cell_, x, state);
    return true;
  }

  /// `sends`: the factor is sent by this thread.
  SEQPAR_LANE void push(const PlainValues& state, float factor, std::uint32_t word, bool sends) const {
    const Line line = sendableLineOf(state);
    const std::uint32_t bits = sendable(asBits(factor), kAbsentAsFloat);
    sends = sends && !task_.first();
    // Who has most to fold first.
    SEQPAR_ROLLED
    for (int to = task_.positions - 1; to > task_.position; --to) {
      Memory::store(ports_.outLine(to, static_cast<std::uint32_t>(group_.thread())), line);
      if (sends) Memory::store(ports_.outWord(to, range_.size(), word), bits);
    }
  }

  /// x of this position, and the hop.
  SEQPAR_LANE bool fold(const PlainValues& own, float factor, std::uint32_t word) const {
    PlainValues x{};
    SEQPAR_ROLLED
    for (int first = 0; first < task_.position; first += kLooks) {
      if (!foldSome(first, word, own, factor, x)) return false;
    }
    return true;
  }

  // Everything is done at every look, though without effect: when the lines come, the instructions are at hand.
  SEQPAR_LANE bool foldSome(int first, std::uint32_t word, const PlainValues& own, float factor, PlainValues& x) const {
    Line* slot[kLooks];
    std::uint32_t* factorAt[kLooks];
    SEQPAR_UNROLL
    for (int i = 0; i < kLooks; ++i) {
      const int from = first + i < task_.position ? first + i : first;
      slot[i] = ports_.inLine(from, static_cast<std::uint32_t>(group_.thread()));
      // The first map has no factor: any word of it will do.
      factorAt[i] = from == 0 ? slot[i]->word : ports_.inWord(from, range_.size(), word);
    }
    const bool end = first + kLooks >= task_.position;
    Wait<Memory> wait(view_, task_.peerAt[first]);
    SEQPAR_ROLLED
    for (;;) {
      Line line[kLooks];
      std::uint32_t bits[kLooks];
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        line[i] = Memory::load(slot[i]);
        bits[i] = Memory::load(factorAt[i]);
      }
      bool live = true;
      PlainValues y = x;
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        live = live && complete(line[i]) && bits[i] != kAbsent;
        const float c = first + i == 0 ? 0.0F : asFloat(bits[i]);
        if (first + i < task_.position) y = applied(c, y, valuesOf(line[i]));
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        Memory::storeIf(live && first + i < task_.position, slot[i], absentLine());
      }
      writePlain<Memory>(task_, live && end, cell_, y, applied(factor, y, own));
      if (live) {
        x = y;
        return true;
      }
      const auto missing = [&] {
        int from = first;
        for (int i = 0; i < kLooks; ++i) {
          if (!complete(line[i]) || bits[i] == kAbsent) from = first + i < task_.position ? first + i : first;
        }
        return static_cast<int>(task_.peerAt[from]);
      };
      if (wait.over(missing)) return false;
    }
  }

  const PeerView& view_;
  const PlainTask& task_;
  const Group& group_;
  PlainPorts<Memory, Group> ports_;
  CellRange range_;
  std::uint32_t cell_;
  std::uint32_t firstFactor_, factors_;
};

}  // namespace seqpar
