// TRANSPOSED of plain cells without flags, a cell a thread, in one round: everyone sends its map of a shard to the
// shard's owner, who scans it over all positions and sends each its x. On the wire as in transposed_lane.h.
#pragma once

#include "scan/maps.h"
#include "scan/plain_ports.h"

namespace seqpar {

template <class Memory, class Group>
class TransposedPlainLane {
 public:
  SEQPAR_LANE TransposedPlainLane(const PeerView& view, const PlainTask& task, int lane, const Group& group,
                                  LanePositions& positions)
      : view_(view),
        task_(task),
        group_(group),
        ports_(view, task, lane, group, positions),
        range_(task.part(lane)),
        cell_(range_.begin + static_cast<std::uint32_t>(group.thread())),
        shardCells_((range_.size() + static_cast<std::uint32_t>(task.positions) - 1) /
                    static_cast<std::uint32_t>(task.positions)) {}

  /// Whether lanes of so many threads can do their parts.
  static bool fits(const ScanTask& task, std::uint32_t threads) {
    return task.part(0, 4).size() <= (threads < kMostTransposedShard ? threads : kMostTransposedShard);
  }

  /// False: gave up.
  SEQPAR_LANE bool run() {
    const bool has = cell_ < range_.end;
    const PlainCell mine = has ? fetched(task_, cell_) : PlainCell{};
    const auto lines = [&](int from, int to) { return linesBetween(from, to); };
    if (!ports_.open(lines)) return false;
    const bool ok = !has || exchange(valuesOf(mine.own), decayed(task_, mine.factor));
    if (group_.any(!ok)) return false;
    const CellRange shard = shardOf(task_.position);
    ports_.close(lines, factorLines(shard), [&](int from) { return xLines(from, task_.position) + shard.size(); });
    return true;
  }

 private:
  static constexpr int kLooks = 4;  // lines that an owner looks at together

  SEQPAR_LANE CellRange shardOf(int position) const {
    const std::uint32_t begin = range_.begin + shardCells_ * static_cast<std::uint32_t>(position);
    const std::uint32_t end = begin + shardCells_;
    return {begin < range_.end ? begin : range_.end, end < range_.end ? end : range_.end};
  }

  // A position sends another x of its own shard and its map of the other's, in the channel in this order.
  SEQPAR_LANE std::uint32_t xLines(int from, int to) const { return to > 0 ? shardOf(from).size() : 0; }
  SEQPAR_LANE std::uint32_t factorLines(CellRange shard) const {
    if (shard.size() == 0) return 0;
    return (factorOf(task_, shard.end - 1) - factorOf(task_, shard.begin) + 4) / 4;
  }
  SEQPAR_LANE std::uint32_t linesBetween(int from, int to) const {
    const CellRange shard = shardOf(to);
    // The last position's map is of no use to anyone, and nothing comes before the first.
    const std::uint32_t map = from + 1 == task_.positions ? 0 : shard.size() + (from > 0 ? factorLines(shard) : 0);
    return xLines(from, to) + map;
  }

  SEQPAR_LANE bool exchange(const PlainValues& own, float factor) const {
    const auto owner = static_cast<int>((cell_ - range_.begin) / shardCells_);
    PlainValues x{};
    PlainValues state = own;
    if (task_.first() && task_.initial != nullptr) {
      x = valuesOf(readLine(task_.initial + cell_));
      state = applied(factor, x, own);
    }
    if (owner == task_.position) return scan(own, factor, x, state);
    if (!task_.last()) sendMap(owner, state, factor);
    if (!task_.first()) return take(owner, own, factor);
    writePlain<Memory>(task_, true, cell_, x, state);
    return true;
  }

  SEQPAR_LANE void sendMap(int owner, const PlainValues& state, float factor) const {
    const CellRange shard = shardOf(owner);
    const std::uint32_t first = xLines(task_.position, owner);
    Memory::store(ports_.outLine(owner, first + cell_ - shard.begin), sendableLineOf(state));
    const std::uint32_t number = factorOf(task_, cell_);
    if (task_.first() || (number * task_.span.divisor() != 4 * cell_ && cell_ != shard.begin)) return;
    const std::uint32_t word = number - factorOf(task_, shard.begin);
    Memory::store(ports_.outWord(owner, first + shard.size(), word), sendable(asBits(factor), kAbsentAsFloat));
  }

  /// The cell of another's shard: x comes.
  SEQPAR_LANE bool take(int owner, const PlainValues& own, float factor) const {
    Line* const in = ports_.inLine(owner, cell_ - shardOf(owner).begin);
    Wait<Memory> wait(view_, task_.peerAt[owner]);
    SEQPAR_ROLLED
    for (;;) {
      const Line line = Memory::load(in);
      const bool live = complete(line);
      const PlainValues x = valuesOf(line);
      Memory::storeIf(live, in, absentLine());
      writePlain<Memory>(task_, live, cell_, x, applied(factor, x, own));
      if (live) return true;
      if (wait.over()) return false;
    }
  }

  /// A cell of the own shard. `x` and `state`: at position 0, x_0 and the hop from it.
  SEQPAR_LANE bool scan(const PlainValues& own, float factor, PlainValues x, const PlainValues& state) const {
    SEQPAR_ROLLED
    for (int first = 0; first < task_.positions; first += kLooks) {
      if (!scanSome(first, own, factor, state, x)) return false;
    }
    return true;
  }

  // Everything is done at every look, though without effect: when the lines come, the instructions are at hand.
  SEQPAR_LANE bool scanSome(int first, const PlainValues& own, float factor, const PlainValues& state,
                            PlainValues& x) const {
    const CellRange shard = shardOf(task_.position);
    const std::uint32_t index = cell_ - shard.begin;
    const std::uint32_t word = factorOf(task_, cell_) - factorOf(task_, shard.begin);
    Line* slot[kLooks];
    std::uint32_t* factorAt[kLooks];
    SEQPAR_UNROLL
    for (int i = 0; i < kLooks; ++i) {
      slot[i] = nullptr;
      factorAt[i] = nullptr;
      const int from = first + i;
      if (!sendsMap(from)) continue;
      const std::uint32_t begin = xLines(from, task_.position);
      slot[i] = ports_.inLine(from, begin + index);
      // The first map has no factor: any word of it will do.
      factorAt[i] = from == 0 ? slot[i]->word : ports_.inWord(from, begin + shard.size(), word);
    }
    Wait<Memory> wait(view_, task_.peerAt[first]);
    SEQPAR_ROLLED
    for (;;) {
      Line line[kLooks];
      std::uint32_t bits[kLooks];
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        line[i] = slot[i] == nullptr ? Line{} : Memory::load(slot[i]);
        bits[i] = slot[i] == nullptr ? 0 : Memory::load(factorAt[i]);
      }
      bool live = true;
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) live = live && complete(line[i]) && bits[i] != kAbsent;
      PlainValues y = x;
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        const int at = first + i;
        if (at >= task_.positions) continue;
        if (at == task_.position) {
          const PlainValues after = at == 0 ? state : applied(factor, y, own);
          writePlain<Memory>(task_, live, cell_, y, after);
          y = after;
          continue;
        }
        if (at > 0) Memory::storeIf(live, ports_.outLine(at, index), sendableLineOf(y));
        if (slot[i] == nullptr) continue;
        y = applied(at == 0 ? 0.0F : asFloat(bits[i]), y, valuesOf(line[i]));
        Memory::storeIf(live, slot[i], absentLine());
      }
      if (live) {
        x = y;
        return true;
      }
      const auto missing = [&] {
        int from = first;
        for (int i = 0; i < kLooks; ++i) {
          if (slot[i] != nullptr && (!complete(line[i]) || bits[i] == kAbsent)) from = first + i;
        }
        return static_cast<int>(task_.peerAt[from]);
      };
      if (wait.over(missing)) return false;
    }
  }

  SEQPAR_LANE bool sendsMap(int from) const { return from + 1 < task_.positions && from != task_.position; }

  const PeerView& view_;
  const PlainTask& task_;
  const Group& group_;
  PlainPorts<Memory, Group> ports_;
  CellRange range_;
  std::uint32_t cell_;
  std::uint32_t shardCells_;
};

}  // namespace seqpar
