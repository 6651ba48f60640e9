// LASP1, a baseline: a lane receives all that its rings hold, then combines, then sends. Source: LASP, arXiv
// 2404.02882; states that are larger than the rings go in pieces.
#pragma once

#include "cells.h"
#include "lane.h"

namespace seqpar {

template <class Shape, class Memory, class Group>
class Lasp1Lane {
 public:
  SEQPAR_LANE Lasp1Lane(const PeerView& view, const ScanTask& task, int lane, const Group& group,
                        LanePositions& positions)
      : task_(task),
        group_(group),
        cells_(task),
        range_(task.part(lane, Shape::kElements)),
        steps_(view, lane, group, positions),
        before_(task.first() ? -1 : task.peerAt[task.position - 1]),
        after_(task.last() ? -1 : task.peerAt[task.position + 1]) {}

  SEQPAR_LANE bool run() {
    constexpr std::uint32_t kPiece = kRingLines / 2;
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += kPiece) {
      const CellRange piece{begin, begin + kPiece < range_.end ? begin + kPiece : range_.end};
      const auto linesTo = [&](int peer) { return peer == after_ ? piece.size() : 0U; };
      const auto linesFrom = [&](int peer) { return peer == before_ ? piece.size() : 0U; };
      if (!steps_.reserve(linesTo) || group_.any(!arrived(piece))) return false;
      hop(piece);
      if (!steps_.settle(true)) return false;
      steps_.advance(piece.end == range_.end, linesTo, linesFrom);
    }
    steps_.finish();
    return true;
  }

 private:
  template <class Do>
  SEQPAR_LANE bool forCells(CellRange piece, const Do& act) const {
    SEQPAR_ROLLED
    for (std::uint32_t cell = piece.begin + group_.thread(); cell < piece.end; cell += group_.threads()) {
      if (!act(cell)) return false;
    }
    return true;
  }

  /// Waits for this thread's lines.
  SEQPAR_LANE bool arrived(CellRange piece) const {
    if (task_.first()) return true;
    const Receiver<Memory> in = steps_.receiver(before_);
    return forCells(piece, [&](std::uint32_t cell) {
      Line line = in.look(cell - piece.begin);
      return in.await(cell - piece.begin, line);
    });
  }

  SEQPAR_LANE void hop(CellRange piece) const {
    forCells(piece, [&](std::uint32_t cell) {
      const std::uint32_t index = cell - piece.begin;
      auto factors = cells_.factors(cell);
      const auto own = cells_.widen(cells_.fetch(task_.state, cell));
      typename Cells<Shape>::Values x;
      if (task_.first()) {
        x = cells_.firstX(cell, factors);
      } else {
        const Receiver<Memory> in = steps_.receiver(before_);
        x = cells_.unpack(in.look(index));
        in.reset(index);
      }
      const auto after = Cells<Shape>::apply(factors, x, own);
      cells_.finish(cell, x, after);
      if (!task_.last()) steps_.sender(after_).put(index, cells_.pack(after));
      return true;
    });
  }

  const ScanTask& task_;
  const Group& group_;
  Cells<Shape> cells_;
  CellRange range_;
  SteppedLane<Memory, Group> steps_;
  int before_, after_;
};

}  // namespace seqpar
