// DOUBLING: in each round everyone prepends what a position some way before it knows. Source: Traeff, exclusive scan
// with 123-doubling, arXiv 2507.04785; the rounds are those of src/scan/doubling.h.
#pragma once

#include "lane.h"
#include "maps.h"

namespace seqpar {

template <class Shape, class Memory, class Group>
class DoublingLane {
 public:
  SEQPAR_LANE DoublingLane(const PeerView& view, const ScanTask& task, int lane, const Group& group,
                           LanePositions& positions)
      : task_(task),
        group_(group),
        cells_(task),
        range_(task.part(lane, Shape::kElements)),
        steps_(view, lane, group, positions) {}

  SEQPAR_LANE bool run() {
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += kRow) {
      if (!step({begin, begin + kRow < range_.end ? begin + kRow : range_.end})) return false;
    }
    steps_.finish();
    return true;
  }

 private:
  using Factors = typename Cells<Shape>::Factors;
  using Values = typename Cells<Shape>::Values;
  using Map = MapLines<Shape>;

  static constexpr std::uint32_t kRow = 512;  // cells of a step
  static_assert(MapLines<Shape>::most(kRow) <= SteppedLane<Memory, Group>::kMostLines);

  /// What a position p sends to p + skip: the map of the `skip` positions before p, or, with `own`, of skip - 1 before
  /// it and itself.
  struct Round {
    int skip;
    bool own;
  };

  SEQPAR_LANE static Round roundOf(int number) {
    if (number < 2) return {number + 1, true};
    return {3 << (number - 2), false};
  }
  SEQPAR_LANE bool hasRound(int number) const {
    return number < 2 ? number + 1 < task_.positions : roundOf(number).skip < task_.positions - 1;
  }

  /// Nothing lies in front of position 0.
  SEQPAR_LANE bool sends(int from, Round round) const {
    return from >= 0 && from + round.skip < task_.positions && (round.own || from > 0);
  }
  /// Whether the map that is sent does not begin at position 0.
  SEQPAR_LANE static bool isRelative(int from, Round round) { return from - round.skip + (round.own ? 1 : 0) > 0; }

  /// The lines from one position to another: they meet in one round at most.
  SEQPAR_LANE std::uint32_t linesBetween(CellRange cells, int from, int to) const {
    if (from < 0 || to < 0) return 0;
    SEQPAR_ROLLED
    for (int number = 0; hasRound(number); ++number) {
      const Round round = roundOf(number);
      if (to - from == round.skip && sends(from, round)) return Map::count(cells_, cells, isRelative(from, round));
    }
    return 0;
  }

  SEQPAR_LANE bool step(CellRange cells) {
    const Map map(cells_, cells, 0);
    const auto linesTo = [&](int peer) { return linesBetween(cells, task_.position, task_.positionOf[peer]); };
    const auto linesFrom = [&](int peer) { return linesBetween(cells, task_.positionOf[peer], task_.position); };
    if (!steps_.reserve(linesTo)) return false;
    bool ok = true;
    SEQPAR_ROLLED
    for (std::uint32_t cell = cells.begin + group_.thread(); ok && cell < cells.end; cell += group_.threads()) {
      ok = scan(map, cell);
    }
    if (!steps_.settle(ok)) return false;
    steps_.advance(cells.end == range_.end, linesTo, linesFrom, [&](const auto& warp) {
      SEQPAR_ROLLED
      for (int number = 0; hasRound(number); ++number) {
        const Round round = roundOf(number);
        const int from = task_.position - round.skip;
        if (sends(from, round) && isRelative(from, round)) map.resetFactors(receiverOf(from), warp);
      }
    });
    return true;
  }

  SEQPAR_LANE bool scan(const Map& map, std::uint32_t cell) const {
    const auto own = cells_.fetch(task_.state, cell);
    cells_.template prefetch<Memory>(cell + kRow, range_.end);
    Factors ownFactors = cells_.factors(cell);
    Values ownState = cells_.widen(own);
    if (task_.first()) {
      const Values x = cells_.firstX(cell, ownFactors);
      ownState = cells_.apply(ownFactors, x, ownState);
      cells_.finish(cell, x, ownState);
    }
    // The map of the positions before this one, as far as known.
    Values before{};
    Factors beforeFactors{};
    SEQPAR_ROLLED
    for (int number = 0; hasRound(number); ++number) {
      const Round round = roundOf(number);
      if (sends(task_.position, round)) {
        const PortSender<Memory> out = steps_.sender(task_.peerAt[task_.position + round.skip]);
        const bool alone = number == 0 || task_.first();
        const Values state = !round.own ? before : alone ? ownState : cells_.apply(ownFactors, before, ownState);
        if (isRelative(task_.position, round)) {
          map.putFactors(out, cell,
                         !round.own ? beforeFactors
                         : alone    ? ownFactors
                                    : cells_.compose(ownFactors, beforeFactors));
        }
        out.put(map.lineOf(cell), cells_.pack(state));
      }
      const int from = task_.position - round.skip;
      if (!sends(from, round)) continue;
      const Receiver<Memory> in = receiverOf(from);
      Line line = in.look(map.lineOf(cell));
      Factors factors{};
      if (isRelative(from, round)) {
        factors = map.lookFactors(in, cell);
        if (!map.awaitFactors(in, cell, factors)) return false;
      }
      if (!in.take(map.lineOf(cell), line)) return false;
      const Values state = cells_.unpack(line);
      before = number == 0 ? state : cells_.apply(beforeFactors, state, before);
      beforeFactors = number == 0 ? factors : cells_.compose(beforeFactors, factors);
    }
    if (!task_.first()) cells_.finish(cell, before, cells_.apply(ownFactors, before, ownState));
    return true;
  }

  SEQPAR_LANE Receiver<Memory> receiverOf(int position) const { return steps_.receiver(task_.peerAt[position]); }

  const ScanTask& task_;
  const Group& group_;
  Cells<Shape> cells_;
  CellRange range_;
  SteppedLane<Memory, Group> steps_;
};

}  // namespace seqpar
