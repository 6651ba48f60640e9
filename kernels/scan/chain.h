// CHAIN: every line goes through the positions by itself: taken from the predecessor, hopped, and sent on at once.
// Source: ZeCO, arXiv 2507.01004, All-Scan, with lines for blocks.
#pragma once

#include "cells.h"
#include "lane.h"

namespace seqpar {

/// One lane's part. Its threads go through rows of cells; `kCells`: those of a row that a thread has in flight.
template <class Shape, class Memory, class Group, int kCells>
class ChainLane {
 public:
  SEQPAR_LANE ChainLane(const PeerView& view, const ScanTask& task, int lane, const Group& group, LanePositions& shared)
      : view_(view),
        task_(task),
        lane_(lane),
        group_(group),
        shared_(shared),
        cells_(task),
        range_(task.part(lane, Shape::kElements)),
        before_(task.first() ? view.self : task.peerAt[task.position - 1]),
        after_(task.last() ? view.self : task.peerAt[task.position + 1]) {}

  /// False: gave up.
  SEQPAR_LANE bool run() {
    const auto row = static_cast<std::uint32_t>(group_.threads()) * kCells;
    Fetched mine = fetch(range_.begin);
    ChannelState in = begun(*channelState(view_, before_, lane_));
    const ChannelState out = begun(*channelState(view_, after_, lane_));
    const Receiver<Memory> previous(view_, before_, lane_, in.received);
    Sender<Memory> next(view_, after_, lane_, out.sent, out.credit);

    SpanCredit<Memory, Group> credit(view_, before_, lane_, group_, shared_, in, task_.first() ? 0 : range_.size());
    bool ok = true;
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; ok && begin < range_.end; begin += row) {
      ok = hopRow(begin, mine, previous, next);
      mine = fetch(begin + row);
      ok = credit.through(ok, (begin + row < range_.end ? begin + row : range_.end) - range_.begin);
    }
    if (group_.any(!ok)) return false;
    if (group_.thread() != 0) return true;
    if (!task_.last()) {
      ChannelState& state = *channelState(view_, after_, lane_);
      state.sent = out.sent + range_.size();
      state.credit = next.credit();
    }
    if (!task_.first()) {
      in.given = credit.given();
      countTaken<Memory>(view_, before_, lane_, in, range_.size());
      ChannelState& state = *channelState(view_, before_, lane_);
      state.received = in.received;
      state.given = in.given;
    }
    return true;
  }

 private:
  using Raw = typename Cells<Shape>::Raw;
  using Factors = typename Cells<Shape>::Factors;
  using Values = typename Cells<Shape>::Values;

  static constexpr int kAhead = 2;  // rows

  /// This rank's part of a thread's cells of a row, not yet looked at.
  struct Fetched {
    Raw own[kCells];
    Factors factors[kCells];
  };

  SEQPAR_LANE std::uint32_t cellOf(std::uint32_t begin, int i) const {
    return begin + static_cast<std::uint32_t>(group_.threads() * i + group_.thread());
  }

  SEQPAR_LANE Fetched fetch(std::uint32_t begin) const {
    Fetched mine{};
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      const std::uint32_t cell = cellOf(begin, i);
      if (cell >= range_.end) continue;
      mine.own[i] = cells_.fetch(task_.state, cell);
      mine.factors[i] = cells_.givenFactors(cell);
      cells_.template prefetch<Memory>(cellOf(begin, i + kAhead * kCells), range_.end);
    }
    return mine;
  }

  SEQPAR_LANE bool hopRow(std::uint32_t begin, const Fetched& mine, const Receiver<Memory>& previous,
                          Sender<Memory>& next) const {
    Line line[kCells];
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      const std::uint32_t cell = cellOf(begin, i);
      if (cell < range_.end && !task_.first()) line[i] = previous.look(cell - range_.begin);
    }
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      const std::uint32_t cell = cellOf(begin, i);
      if (cell < range_.end && !hop(cell, mine.own[i], mine.factors[i], line[i], previous, next)) return false;
    }
    return true;
  }

  SEQPAR_LANE bool hop(std::uint32_t cell, const Raw& own, const Factors& given, Line& line,
                       const Receiver<Memory>& previous, Sender<Memory>& next) const {
    const std::uint32_t index = cell - range_.begin;
    if (!task_.last() && !next.reserve(index + 1)) return false;
    if (!task_.first() && !previous.await(index, line)) return false;
    Factors factors = cells_.decayed(cell, given);
    const Values x = task_.first() ? cells_.firstX(cell, factors) : cells_.unpack(line);
    const Values after = Cells<Shape>::apply(factors, x, cells_.widen(own));
    if (!task_.last()) next.put(index, cells_.pack(after));
    if (!task_.first()) previous.reset(index);
    cells_.finish(cell, x, after);
    return true;
  }

  const PeerView& view_;
  const ScanTask& task_;
  int lane_;
  const Group& group_;
  LanePositions& shared_;
  Cells<Shape> cells_;
  CellRange range_;
  int before_, after_;
};

}  // namespace seqpar
