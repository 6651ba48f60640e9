// TRANSPOSED: the cells of a round are cut into a shard for each position. Everyone sends its map of a shard to the
// shard's owner, who scans it over all positions and sends each its x: two hops, whatever the number of positions.
#pragma once

#include "lane.h"
#include "maps.h"

namespace seqpar {

template <class Shape, class Memory, class Group>
class TransposedLane {
 public:
  SEQPAR_LANE TransposedLane(const PeerView& view, const ScanTask& task, int lane, const Group& group,
                             LanePositions& positions)
      : task_(task),
        group_(group),
        cells_(task),
        range_(task.part(lane, Shape::kElements)),
        steps_(view, lane, group, positions) {}

  SEQPAR_LANE bool run() {
    const std::uint32_t round = kMostTransposedShard * static_cast<std::uint32_t>(task_.positions);
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += round) {
      round_ = {begin, begin + round < range_.end ? begin + round : range_.end};
      shardCells_ = (round_.size() + static_cast<std::uint32_t>(task_.positions) - 1) /
                    static_cast<std::uint32_t>(task_.positions);
      if (!step()) return false;
    }
    steps_.finish();
    return true;
  }

 private:
  using Raw = typename Cells<Shape>::Raw;
  using Factors = typename Cells<Shape>::Factors;
  using Values = typename Cells<Shape>::Values;
  using Map = MapLines<Shape>;

  static constexpr int kCells = Shape::kPlain ? 2 : 1;    // that a thread has in flight
  static constexpr int kLooks = Shape::kUniform ? 4 : 1;  // lines that an owner looks at together
  static_assert(MapLines<Shape>::most(kMostTransposedShard) + kMostTransposedShard <=
                SteppedLane<Memory, Group>::kMostLines);

  SEQPAR_LANE CellRange shardOf(int position) const {
    const std::uint32_t begin = round_.begin + shardCells_ * static_cast<std::uint32_t>(position);
    const std::uint32_t end = begin + shardCells_;
    return {begin < round_.end ? begin : round_.end, end < round_.end ? end : round_.end};
  }
  SEQPAR_LANE int ownerOf(std::uint32_t cell) const { return static_cast<int>((cell - round_.begin) / shardCells_); }

  // A position sends another x of its own shard and its map of the other's, in the channel in this order, whichever
  // comes first in time.
  SEQPAR_LANE std::uint32_t xLines(int from, int to) const { return to > 0 ? shardOf(from).size() : 0; }
  SEQPAR_LANE Map mapBetween(int from, int to) const { return Map(cells_, shardOf(to), xLines(from, to)); }
  SEQPAR_LANE std::uint32_t linesBetween(int from, int to) const {
    if (from < 0 || to < 0 || from == to) return 0;
    // The last position's map is of no use to anyone.
    const std::uint32_t map = from + 1 == task_.positions ? 0 : Map::count(cells_, shardOf(to), from > 0);
    return xLines(from, to) + map;
  }

  SEQPAR_LANE bool step() {
    const auto linesTo = [&](int peer) { return linesBetween(task_.position, task_.positionOf[peer]); };
    const auto linesFrom = [&](int peer) { return linesBetween(task_.positionOf[peer], task_.position); };
    if (!steps_.reserve(linesTo)) return false;
    const CellRange mine = shardOf(task_.position);
    scatter();
    const bool ok = scan(mine) && (task_.first() || take());
    if (!steps_.settle(ok)) return false;
    steps_.advance(round_.end == range_.end, linesTo, linesFrom, [&](const auto& warp) {
      SEQPAR_ROLLED
      for (int from = 1; from + 1 < task_.positions; ++from) {
        if (from != task_.position) mapBetween(from, task_.position).resetFactors(receiverOf(from), warp);
      }
    });
    return true;
  }

  /// Sends this position's map of all shards but its own. At position 0 that is the hop, too.
  SEQPAR_LANE void scatter() const {
    if (task_.last()) return;
    forBatches(round_, [&](const std::uint32_t(&cell)[kCells]) {
      Raw own[kCells];
      Factors factors[kCells]{};
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        if (cell[i] >= round_.end || ownerOf(cell[i]) == task_.position) continue;
        own[i] = cells_.fetch(task_.state, cell[i]);
        factors[i] = cells_.factors(cell[i]);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        const int owner = ownerOf(cell[i]);
        if (cell[i] >= round_.end || owner == task_.position) continue;
        const Map map = mapBetween(task_.position, owner);
        const PortSender<Memory> out = senderTo(owner);
        if (!task_.first()) map.putFactors(out, cell[i], factors[i]);
        out.put(map.lineOf(cell[i]), cells_.pack(firstOr(cell[i], own[i], factors[i])));
      }
      return true;
    });
  }

  /// What is sent of a cell: S or, at position 0, which finishes the cell here, A x_0 + S.
  SEQPAR_LANE Values firstOr(std::uint32_t cell, const Raw& own, Factors factors) const {
    if (!task_.first()) return cells_.widen(own);
    return hop(cell, cells_.firstX(cell, factors), own, factors);
  }
  SEQPAR_LANE Values hop(std::uint32_t cell, const Values& x, const Raw& own, const Factors& factors) const {
    const Values after = Cells<Shape>::apply(factors, x, cells_.widen(own));
    cells_.finish(cell, x, after);
    return after;
  }

  /// Scans the own shard over all positions and sends them x.
  SEQPAR_LANE bool scan(CellRange mine) const {
    SEQPAR_ROLLED
    for (std::uint32_t cell = mine.begin + group_.thread(); cell < mine.end; cell += group_.threads()) {
      const Raw own = cells_.fetch(task_.state, cell);
      const Factors ownFactors = cells_.factors(cell);
      Values x{};
      SEQPAR_ROLLED
      for (int first = 0; first < task_.positions; first += kLooks) {
        Line line[kLooks];
        Factors factors[kLooks];
        SEQPAR_UNROLL
        for (int i = 0; i < kLooks; ++i) {
          const int from = first + i;
          if (from + 1 >= task_.positions || from == task_.position) continue;
          const Receiver<Memory> in = receiverOf(from);
          const Map map = mapBetween(from, task_.position);
          line[i] = in.look(map.lineOf(cell));
          factors[i] = from == 0 ? Factors{} : map.lookFactors(in, cell);
        }
        SEQPAR_UNROLL
        for (int i = 0; i < kLooks; ++i) {
          const int position = first + i;
          if (position >= task_.positions) continue;
          if (position == task_.position) {
            x = task_.first() ? firstOr(cell, own, ownFactors) : hop(cell, x, own, ownFactors);
            continue;
          }
          if (position > 0) senderTo(position).put(cell - mine.begin, cells_.pack(x));
          if (position + 1 == task_.positions) continue;
          const Receiver<Memory> in = receiverOf(position);
          const Map map = mapBetween(position, task_.position);
          if (!map.awaitFactors(in, cell, factors[i])) return false;
          if (!in.take(map.lineOf(cell), line[i])) return false;
          x = Cells<Shape>::apply(factors[i], x, cells_.unpack(line[i]));
        }
      }
    }
    return true;
  }

  /// Hops the cells of other owners, as x comes.
  SEQPAR_LANE bool take() const {
    return forBatches(round_, [&](const std::uint32_t(&cell)[kCells]) {
      Raw own[kCells];
      Factors factors[kCells]{};
      Line line[kCells];
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        const int owner = ownerOf(cell[i]);
        if (cell[i] >= round_.end || owner == task_.position) continue;
        line[i] = receiverOf(owner).look(cell[i] - shardOf(owner).begin);
        own[i] = cells_.fetch(task_.state, cell[i]);
        factors[i] = cells_.factors(cell[i]);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        const int owner = ownerOf(cell[i]);
        if (cell[i] >= round_.end || owner == task_.position) continue;
        if (!receiverOf(owner).take(cell[i] - shardOf(owner).begin, line[i])) return false;
        hop(cell[i], cells_.unpack(line[i]), own[i], factors[i]);
      }
      return true;
    });
  }

  /// Calls act(cells) for batches of this thread's cells; those past the end are to be left out.
  template <class Act>
  SEQPAR_LANE bool forBatches(CellRange cells, const Act& act) const {
    const auto threads = static_cast<std::uint32_t>(group_.threads());
    SEQPAR_ROLLED
    for (std::uint32_t begin = cells.begin + group_.thread(); begin < cells.end; begin += threads * kCells) {
      std::uint32_t cell[kCells];
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) cell[i] = begin + threads * static_cast<std::uint32_t>(i);
      if (!act(cell)) return false;
    }
    return true;
  }

  SEQPAR_LANE PortSender<Memory> senderTo(int position) const { return steps_.sender(task_.peerAt[position]); }
  SEQPAR_LANE Receiver<Memory> receiverOf(int position) const { return steps_.receiver(task_.peerAt[position]); }

  const ScanTask& task_;
  const Group& group_;
  Cells<Shape> cells_;
  CellRange range_;
  SteppedLane<Memory, Group> steps_;
  CellRange round_;
  std::uint32_t shardCells_ = 1;
};

}  // namespace seqpar
