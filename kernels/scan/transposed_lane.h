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
        range_(partOf({0, cells_.count()}, lane, task.lanes)),
        steps_(view, lane, group, positions) {}

  SEQPAR_LANE bool run() {
    const std::uint32_t round = kMostShard * static_cast<std::uint32_t>(task_.positions);
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
  using Maps = MapsOfPositions<Shape>;

  static constexpr int kCells = Shape::kPlain ? 4 : 2;  // that a thread has in flight
  static constexpr int kLooks = Shape::kPlain ? 8 : 4;  // lines that an owner looks at together
  static constexpr std::uint32_t kMostShard = Shape::kUniform ? 1024 : 512;
  static_assert(MapLines<Shape>::mostLines(kMostShard) + kMostShard <= kRingLines - kCreditLines);

  SEQPAR_LANE CellRange shardOf(int position) const {
    const std::uint32_t begin = round_.begin + shardCells_ * static_cast<std::uint32_t>(position);
    const std::uint32_t end = begin + shardCells_;
    return {begin < round_.end ? begin : round_.end, end < round_.end ? end : round_.end};
  }
  SEQPAR_LANE int ownerOf(std::uint32_t cell) const { return static_cast<int>((cell - round_.begin) / shardCells_); }

  /// The map that position `from` sends to `owner`; the last position's is of no use to anyone.
  SEQPAR_LANE std::uint32_t mapLines(int from, int owner) const {
    if (from + 1 == task_.positions) return 0;
    return MapLines<Shape>(task_, cells_, shardOf(owner), from > 0).lines();
  }
  /// Lines from one position to another in this round: its map of the other's shard, then x of its own shard.
  SEQPAR_LANE std::uint32_t linesBetween(int from, int to) const {
    if (from < 0 || to < 0 || from == to) return 0;
    return mapLines(from, to) + (to > 0 ? shardOf(from).size() : 0);
  }

  SEQPAR_LANE bool step() {
    const auto linesTo = [&](int peer) { return linesBetween(task_.position, task_.positionOf[peer]); };
    const auto linesFrom = [&](int peer) { return linesBetween(task_.positionOf[peer], task_.position); };
    if (!steps_.reserve(linesTo)) return false;
    const CellRange mine = shardOf(task_.position);
    const Maps maps(task_, cells_, mine);
    scatter();
    const bool ok =
        scan(mine, maps) && (task_.first() || (take({round_.begin, mine.begin}) && take({mine.end, round_.end})));
    if (group_.any(!ok)) return false;
    for (int from = 1; from + 1 < task_.positions; ++from) {
      if (from != task_.position) maps.relative.resetFactors(receiverOf(from), group_);
    }
    return steps_.advance(true, linesTo, linesFrom);
  }

  /// Sends this position's map of all shards but its own. At position 0 that is the hop, too.
  SEQPAR_LANE void scatter() const {
    if (task_.last()) return;
    forBatches(round_, [&](const std::uint32_t(&cell)[kCells]) {
      Raw own[kCells];
      Factors factors[kCells];
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        if (cell[i] >= round_.end) continue;
        own[i] = cells_.fetch(task_.state, cell[i]);
        factors[i] = cells_.factors(cell[i]);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        if (cell[i] >= round_.end) continue;
        const int owner = ownerOf(cell[i]);
        if (owner == task_.position) continue;
        const MapLines<Shape> map(task_, cells_, shardOf(owner), !task_.first());
        const Sender<Memory> out = senderTo(owner);
        map.putFactors(out, cell[i], factors[i]);
        out.put(map.lineOf(cell[i]), cells_.pack(task_.first() ? cells_.firstHop(cell[i]) : cells_.widen(own[i])));
      }
      return true;
    });
  }

  /// Scans the own shard over all positions and sends them x.
  SEQPAR_LANE bool scan(CellRange mine, const Maps& maps) const {
    for (std::uint32_t cell = mine.begin + group_.thread(); cell < mine.end; cell += group_.threads()) {
      const Raw own = cells_.fetch(task_.state, cell);
      const Factors ownFactors = cells_.factors(cell);
      Values x{};
      for (int first = 0; first < task_.positions; first += kLooks) {
        Line line[kLooks];
        Factors factors[kLooks];
        SEQPAR_UNROLL
        for (int i = 0; i < kLooks; ++i) {
          const int from = first + i;
          if (from + 1 >= task_.positions || from == task_.position) continue;
          const Receiver<Memory> in = receiverOf(from);
          line[i] = in.look(maps.of(from).lineOf(cell));
          factors[i] = from == 0 ? Factors{} : maps.relative.lookFactors(in, cell);
        }
        SEQPAR_UNROLL
        for (int i = 0; i < kLooks; ++i) {
          const int position = first + i;
          if (position >= task_.positions) continue;
          if (position == task_.position) {
            x = task_.first() ? cells_.firstHop(cell) : cells_.hop(cell, x, own, ownFactors);
            continue;
          }
          if (position > 0) send(position, mine, cell, x);
          if (position + 1 == task_.positions) continue;
          const Receiver<Memory> in = receiverOf(position);
          if (!maps.relative.awaitFactors(in, cell, factors[i])) return false;
          if (!in.take(maps.of(position).lineOf(cell), line[i])) return false;
          x = Cells<Shape>::apply(factors[i], x, cells_.unpack(line[i]));
        }
      }
    }
    return true;
  }

  SEQPAR_LANE void send(int position, CellRange mine, std::uint32_t cell, const Values& x) const {
    senderTo(position).put(mapLines(task_.position, position) + cell - mine.begin, cells_.pack(x));
  }

  /// Hops the cells of other owners, as x comes.
  SEQPAR_LANE bool take(CellRange cells) const {
    return forBatches(cells, [&](const std::uint32_t(&cell)[kCells]) {
      Raw own[kCells];
      Factors factors[kCells];
      Line line[kCells];
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        if (cell[i] >= cells.end) continue;
        const int owner = ownerOf(cell[i]);
        line[i] = receiverOf(owner).look(xLine(owner, cell[i]));
        own[i] = cells_.fetch(task_.state, cell[i]);
        factors[i] = cells_.factors(cell[i]);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        if (cell[i] >= cells.end) continue;
        const int owner = ownerOf(cell[i]);
        if (!receiverOf(owner).take(xLine(owner, cell[i]), line[i])) return false;
        cells_.hop(cell[i], cells_.unpack(line[i]), own[i], factors[i]);
      }
      return true;
    });
  }

  /// In the channel from `owner`.
  SEQPAR_LANE std::uint32_t xLine(int owner, std::uint32_t cell) const {
    return mapLines(owner, task_.position) + cell - shardOf(owner).begin;
  }

  /// Calls act(cells) for batches of this thread's cells; those past the end are to be left out.
  template <class Act>
  SEQPAR_LANE bool forBatches(CellRange cells, const Act& act) const {
    const auto threads = static_cast<std::uint32_t>(group_.threads());
    for (std::uint32_t begin = cells.begin + group_.thread(); begin < cells.end; begin += threads * kCells) {
      std::uint32_t cell[kCells];
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) cell[i] = begin + threads * static_cast<std::uint32_t>(i);
      if (!act(cell)) return false;
    }
    return true;
  }

  SEQPAR_LANE Sender<Memory> senderTo(int position) const { return steps_.sender(task_.peerAt[position]); }
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
