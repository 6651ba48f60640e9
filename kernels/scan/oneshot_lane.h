// ONESHOT: every position sends its map to all later ones, and each folds what it gets, in order. LASP2, a baseline, is
// the same with an all-gather: maps go to everyone, and are dropped where they are not needed. Source: LASP-2, arXiv
// 2502.07563.
#pragma once

#include "lane.h"
#include "maps.h"

namespace seqpar {

template <class Shape, class Memory, class Group, bool Gather>
class OneshotLane {
 public:
  SEQPAR_LANE OneshotLane(const PeerView& view, const ScanTask& task, int lane, const Group& group,
                          LanePositions& positions)
      : task_(task),
        group_(group),
        cells_(task),
        range_(partOf({0, cells_.count()}, lane, task.lanes)),
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

  static constexpr int kLooks = Shape::kUniform ? 4 : 1;  // lines that a thread looks at together
  static constexpr std::uint32_t kRow = 512;              // cells of a step
  static_assert(MapLines<Shape>::most(kRow) <= SteppedLane<Memory, Group>::kMostLines);

  using Map = MapLines<Shape>;

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
    bool ok = true;
    SEQPAR_ROLLED
    for (std::uint32_t cell = cells.begin + group_.thread(); ok && cell < cells.end; cell += group_.threads()) {
      ok = exchange(map, cell);
    }
    if (group_.any(!ok)) return false;
    SEQPAR_ROLLED
    for (int from = 1; from < task_.positions; ++from) {
      if (sends(from, task_.position)) map.resetFactors(receiverOf(from), group_);
    }
    return steps_.advance(true, linesTo, linesFrom);
  }

  SEQPAR_LANE bool exchange(const Map& map, std::uint32_t cell) const {
    const auto own = cells_.fetch(task_.state, cell);
    cells_.template prefetch<Memory>(cell + kRow, range_.end);
    Factors factors = cells_.factors(cell);
    Values x{};
    Values state = cells_.widen(own);
    if (task_.first()) {
      x = cells_.firstX(cell, factors);
      state = Cells<Shape>::apply(factors, x, state);
    }
    push(map, cell, state, factors);
    if (!task_.first()) {
      if (!fold(map, cell, x)) return false;
      state = Cells<Shape>::apply(factors, x, state);
    }
    cells_.finish(cell, x, state);
    return !Gather || drop(map, cell);
  }

  SEQPAR_LANE void push(const Map& map, std::uint32_t cell, const Values& state, const Factors& factors) const {
    const Line line = cells_.pack(state);
    SEQPAR_ROLLED
    for (int to = Gather ? 0 : task_.position + 1; to < task_.positions; ++to) {
      if (!sends(task_.position, to)) continue;
      const Sender<Memory> out = steps_.sender(task_.peerAt[to]);
      if (!task_.first()) map.putFactors(out, cell, factors);
      out.put(map.lineOf(cell), line);
    }
  }

  /// x of this position.
  SEQPAR_LANE bool fold(const Map& map, std::uint32_t cell, Values& x) const {
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
        if (!map.awaitFactors(in, cell, factors[i])) return false;
        if (!in.take(map.lineOf(cell), line[i])) return false;
        x = Cells<Shape>::apply(factors[i], x, cells_.unpack(line[i]));
      }
    }
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
  SteppedLane<Memory, Group> steps_;
};

}  // namespace seqpar
