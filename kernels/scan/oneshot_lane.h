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
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += kRow) {
      if (!step({begin, begin + kRow < range_.end ? begin + kRow : range_.end})) return false;
    }
    steps_.finish();
    return true;
  }

 private:
  using Raw = typename Cells<Shape>::Raw;
  using Factors = typename Cells<Shape>::Factors;
  using Values = typename Cells<Shape>::Values;

  static constexpr int kCells = Shape::kPlain ? 2 : 1;                 // that a thread has in flight
  static constexpr int kLooks = Shape::kPlain ? 8 : 4;                 // lines that a thread looks at together
  static constexpr std::uint32_t kRow = Shape::kUniform ? 1024 : 512;  // cells of a step
  static_assert(MapLines<Shape>::mostLines(kRow) <= kRingLines - kCreditLines);

  using Maps = MapsOfPositions<Shape>;

  /// Whether position `from` sends to position `to`.
  SEQPAR_LANE static bool sends(int from, int to) { return from >= 0 && to >= 0 && (Gather ? from != to : from < to); }

  SEQPAR_LANE bool step(CellRange cells) {
    const Maps maps(task_, cells_, cells);
    const auto linesTo = [&](int peer) {
      return sends(task_.position, task_.positionOf[peer]) ? maps.of(task_.position).lines() : 0U;
    };
    const auto linesFrom = [&](int peer) {
      const int from = task_.positionOf[peer];
      return sends(from, task_.position) ? maps.of(from).lines() : 0U;
    };
    if (!steps_.reserve(linesTo)) return false;
    bool ok = true;
    const auto batch = static_cast<std::uint32_t>(group_.threads() * kCells);
    for (std::uint32_t begin = cells.begin; ok && begin < cells.end; begin += batch) {
      ok = exchange({begin, begin + batch < cells.end ? begin + batch : cells.end}, maps);
    }
    if (group_.any(!ok)) return false;
    for (int from = 1; from < task_.positions; ++from) {
      if (sends(from, task_.position)) maps.relative.resetFactors(receiverOf(from), group_);
    }
    return steps_.advance(true, linesTo, linesFrom);
  }

  SEQPAR_LANE bool exchange(CellRange cells, const Maps& maps) const {
    Raw own[kCells];
    Factors factors[kCells];
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      const std::uint32_t cell = cellOf(cells, i);
      if (cell >= cells.end) continue;
      own[i] = cells_.fetch(task_.state, cell);
      factors[i] = cells_.factors(cell);
    }
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      const std::uint32_t cell = cellOf(cells, i);
      if (cell < cells.end) push(maps, cell, task_.first() ? cells_.firstHop(cell) : cells_.widen(own[i]), factors[i]);
    }
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      const std::uint32_t cell = cellOf(cells, i);
      if (cell >= cells.end) continue;
      Values x{};
      if (!task_.first()) {
        if (!fold(maps, cell, x)) return false;
        cells_.hop(cell, x, own[i], factors[i]);
      }
      if (Gather && !drop(maps, cell)) return false;
    }
    return true;
  }

  SEQPAR_LANE std::uint32_t cellOf(CellRange cells, int i) const {
    return cells.begin + static_cast<std::uint32_t>(group_.threads() * i + group_.thread());
  }

  SEQPAR_LANE void push(const Maps& maps, std::uint32_t cell, const Values& state, const Factors& factors) const {
    const MapLines<Shape>& map = maps.of(task_.position);
    const Line line = cells_.pack(state);
    for (int to = Gather ? 0 : task_.position + 1; to < task_.positions; ++to) {
      if (!sends(task_.position, to)) continue;
      const Sender<Memory> out = steps_.sender(task_.peerAt[to]);
      map.putFactors(out, cell, factors);
      out.put(map.lineOf(cell), line);
    }
  }

  /// x of this position.
  SEQPAR_LANE bool fold(const Maps& maps, std::uint32_t cell, Values& x) const {
    for (int first = 0; first < task_.position; first += kLooks) {
      Line line[kLooks];
      Factors factors[kLooks];
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        const int from = first + i;
        if (from >= task_.position) continue;
        const Receiver<Memory> in = receiverOf(from);
        line[i] = in.look(maps.of(from).lineOf(cell));
        factors[i] = from == 0 ? Factors{} : maps.relative.lookFactors(in, cell);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        const int from = first + i;
        if (from >= task_.position) continue;
        const Receiver<Memory> in = receiverOf(from);
        if (!maps.relative.awaitFactors(in, cell, factors[i])) return false;
        if (!in.take(maps.of(from).lineOf(cell), line[i])) return false;
        x = Cells<Shape>::apply(factors[i], x, cells_.unpack(line[i]));
      }
    }
    return true;
  }

  /// Takes what later positions sent.
  SEQPAR_LANE bool drop(const Maps& maps, std::uint32_t cell) const {
    const std::uint32_t index = maps.relative.lineOf(cell);
    for (int from = task_.position + 1; from < task_.positions; ++from) {
      const Receiver<Memory> in = receiverOf(from);
      Factors factors = maps.relative.lookFactors(in, cell);
      Line line = in.look(index);
      if (!maps.relative.awaitFactors(in, cell, factors) || !in.take(index, line)) return false;
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
