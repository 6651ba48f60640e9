// ONESHOT: every position sends its map to all later ones, and each folds what it gets, in order. LASP2, a baseline, is
// the same with an all-gather: maps go to everyone, and are dropped where they are not needed. Source: LASP-2, arXiv
// 2502.07563.
#pragma once

#include "lane.h"
#include "maps.h"

namespace seqpar {

/// In steps of a cell a thread.
template <class Shape, class Memory, class Group, bool Gather>
class OneshotLane {
 public:
  SEQPAR_LANE OneshotLane(const PeerView& view, const ScanTask& task, int lane, const Group& group,
                          LanePositions& positions)
      : task_(task),
        group_(group),
        cells_(task),
        range_(task.part(lane, Shape::kElements)),
        mine_(fetch(range_.begin + static_cast<std::uint32_t>(group.thread()))),
        steps_(view, lane, group, positions) {}

  SEQPAR_LANE bool run() {
    const std::uint32_t row = rowCells();
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += row) {
      if (!step({begin, begin + row < range_.end ? begin + row : range_.end})) return false;
    }
    steps_.finish();
    return true;
  }

 private:
  using Raw = typename Cells<Shape>::Raw;
  using Factors = typename Cells<Shape>::Factors;
  using Values = typename Cells<Shape>::Values;
  using Map = MapLines<Shape>;

  static constexpr int kLooks = Shape::kPlain ? 4 : 1;  // lines that a thread looks at together
  static_assert(MapLines<Shape>::most(kMostOneshotRow) <= SteppedLane<Memory, Group>::kMostLines);

  SEQPAR_LANE std::uint32_t rowCells() const {
    const auto threads = static_cast<std::uint32_t>(group_.threads());
    return threads < kMostOneshotRow ? threads : kMostOneshotRow;
  }

  /// This rank's map of a cell, not yet looked at.
  struct Fetched {
    Raw state;
    Factors factors;
  };
  SEQPAR_LANE Fetched fetch(std::uint32_t cell) const {
    if (cell >= range_.end) return {};
    return {cells_.fetch(task_.state, cell), cells_.givenFactors(cell)};
  }

  /// Whether position `from` sends to position `to`.
  SEQPAR_LANE static bool sends(int from, int to) { return from >= 0 && to >= 0 && (Gather ? from != to : from < to); }

  SEQPAR_LANE bool step(CellRange cells) {
    const Map map(cells_, cells, 0);
    const std::uint32_t absolute = Map::count(cells_, cells, false);
    const std::uint32_t relative = Map::count(cells_, cells, true);
    const auto lines = [&](int from, int to) { return !sends(from, to) ? 0 : from == 0 ? absolute : relative; };
    const auto linesTo = [&](int peer) { return lines(task_.position, task_.positionOf[peer]); };
    const auto linesFrom = [&](int peer) { return lines(task_.positionOf[peer], task_.position); };
    if (!steps_.reserve(linesTo)) return false;
    const std::uint32_t cell = cells.begin + static_cast<std::uint32_t>(group_.thread());
    if (!steps_.settle(cell >= cells.end || exchange(map, cell))) return false;
    steps_.advance(cells.end == range_.end, linesTo, linesFrom, [&](const auto& warp) {
      SEQPAR_ROLLED
      for (int from = 1; from < task_.positions; ++from) {
        if (sends(from, task_.position)) map.resetFactors(receiverOf(from), warp);
      }
    });
    return true;
  }

  SEQPAR_LANE bool exchange(const Map& map, std::uint32_t cell) {
    const Values own = cells_.widen(mine_.state);
    Factors factors = cells_.decayed(cell, mine_.factors);
    if (task_.first()) {
      const Values x = cells_.firstX(cell, factors);
      const Values after = Cells<Shape>::apply(factors, x, own);
      push(map, cell, after, factors);
      cells_.finish(cell, x, after);
    } else {
      push(map, cell, own, factors);
    }
    mine_ = fetch(cell + rowCells());
    return (task_.first() || fold(map, cell, own, factors)) && (!Gather || drop(map, cell));
  }

  SEQPAR_LANE void push(const Map& map, std::uint32_t cell, const Values& state, const Factors& factors) const {
    const Line line = cells_.pack(state);
    const auto words = map.words(cell);
    SEQPAR_ROLLED
    for (int to = Gather ? 0 : task_.position + 1; to < task_.positions; ++to) {
      if (!sends(task_.position, to)) continue;
      const PortSender<Memory> out = steps_.sender(task_.peerAt[to]);
      out.put(map.lineOf(cell), line);
      if (!task_.first()) Map::putFactors(out, words, factors);
    }
  }

  /// x of this position, and the hop.
  SEQPAR_LANE bool fold(const Map& map, std::uint32_t cell, const Values& own, const Factors& ownFactors) const {
    Values x{};
    SEQPAR_ROLLED
    for (int first = 0; first < task_.position; first += kLooks) {
      Line line[kLooks];
      Factors factors[kLooks];
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        const int from = first + i;
        if (from >= task_.position) continue;
        const Receiver<Memory> in = receiverOf(from);
        line[i] = in.look(map.lineOf(cell));
        factors[i] = from == 0 ? Factors{} : map.lookFactors(in, cell);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        const int from = first + i;
        if (from >= task_.position) continue;
        const Receiver<Memory> in = receiverOf(from);
        if (!map.awaitFactors(in, cell, factors[i]) || !in.take(map.lineOf(cell), line[i])) return false;
        x = Cells<Shape>::apply(factors[i], x, cells_.unpack(line[i]));
      }
    }
    cells_.finish(cell, x, Cells<Shape>::apply(ownFactors, x, own));
    return true;
  }

  /// Takes what later positions sent.
  SEQPAR_LANE bool drop(const Map& map, std::uint32_t cell) const {
    const std::uint32_t index = map.lineOf(cell);
    SEQPAR_ROLLED
    for (int from = task_.position + 1; from < task_.positions; ++from) {
      const Receiver<Memory> in = receiverOf(from);
      Factors factors = map.lookFactors(in, cell);
      Line line = in.look(index);
      if (!map.awaitFactors(in, cell, factors) || !in.take(index, line)) return false;
    }
    return true;
  }

  SEQPAR_LANE Receiver<Memory> receiverOf(int position) const { return steps_.receiver(task_.peerAt[position]); }

  const ScanTask& task_;
  const Group& group_;
  Cells<Shape> cells_;
  CellRange range_;
  Fetched mine_;
  SteppedLane<Memory, Group> steps_;
};

}  // namespace seqpar
