// CHAIN: every line goes through the positions by itself: taken from the predecessor, hopped, and sent on at once.
// Source: ZeCO, arXiv 2507.01004, All-Scan, with lines for blocks.
#pragma once

#include "cells.h"
#include "lane.h"

namespace seqpar {

/// One lane's part. False: gave up.
template <class Shape, class Memory, class Group>
class ChainLane {
 public:
  SEQPAR_LANE ChainLane(const PeerView& view, const ScanTask& task, int lane, const Group& group, LanePositions&)
      : view_(view),
        task_(task),
        lane_(lane),
        group_(group),
        cells_(task),
        range_(partOf({0, cells_.count()}, lane, task.lanes)),
        before_(task.first() ? -1 : task.peerAt[task.position - 1]),
        after_(task.last() ? -1 : task.peerAt[task.position + 1]) {}

  SEQPAR_LANE bool run() {
    for (int i = 0; i < kAhead * kCells; ++i) cells_.template prefetch<Memory>(cellOf(range_.begin, i), range_.end);
    const int self = view_.self;
    const ChannelState in = *channelState(view_, task_.first() ? self : before_, lane_);
    const ChannelState out = *channelState(view_, task_.last() ? self : after_, lane_);
    Sender<Memory> next(view_, task_.last() ? self : after_, lane_, out.sent, out.credit);
    const Receiver<Memory> previous(view_, task_.first() ? self : before_, lane_, in.received);

    std::uint64_t given = in.given;
    bool ok = true;
    const std::uint32_t row = static_cast<std::uint32_t>(group_.threads()) * kCells;
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; begin < range_.end; begin += row) {
      ok = ok && hopRow(begin, previous, next);
      const std::uint32_t end = begin + row < range_.end ? begin + row : range_.end;
      const std::uint64_t taken = in.received + (end - range_.begin);
      if (task_.first() || taken - given < kCreditLines) continue;
      if (group_.any(!ok)) return false;
      // Publishing takes as long as all stores of the lane take to arrive: the warps take turns.
      const auto publisher = taken / kCreditLines * 32 % static_cast<std::uint64_t>(group_.threads());
      if (static_cast<std::uint64_t>(group_.thread()) == publisher) giveCredit<Memory>(view_, before_, lane_, taken);
      given = taken;
    }
    if (group_.any(!ok)) return false;
    if (group_.thread() != 0) return true;
    if (!task_.last()) {
      ChannelState& state = *channelState(view_, after_, lane_);
      state.sent = out.sent + range_.size();
      state.credit = next.credit();
    }
    if (!task_.first()) {
      ChannelState& state = *channelState(view_, before_, lane_);
      state.received = in.received + range_.size();
      state.given = given;
    }
    return true;
  }

 private:
  using Raw = typename Cells<Shape>::Raw;
  using Factors = typename Cells<Shape>::Factors;
  using Values = typename Cells<Shape>::Values;

  static constexpr int kCells = Shape::kPlain ? 2 : 1;  // that a thread has in flight
  static constexpr int kAhead = 4;                      // rows

  SEQPAR_LANE std::uint32_t cellOf(std::uint32_t begin, int i) const {
    return begin + static_cast<std::uint32_t>(group_.threads() * i + group_.thread());
  }

  SEQPAR_LANE bool hopRow(std::uint32_t begin, const Receiver<Memory>& previous, Sender<Memory>& next) const {
    Raw own[kCells];
    Factors factors[kCells];
    Line line[kCells];
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      const std::uint32_t cell = cellOf(begin, i);
      if (cell >= range_.end) continue;
      own[i] = cells_.fetch(task_.state, cell);
      factors[i] = cells_.factors(cell);
      cells_.template prefetch<Memory>(cellOf(begin, i + kAhead * kCells), range_.end);
      if (!task_.first()) line[i] = previous.look(cell - range_.begin);
    }
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      const std::uint32_t cell = cellOf(begin, i);
      if (cell >= range_.end) continue;
      Values x;
      if (task_.first()) {
        x = cells_.firstX(cell, factors[i]);
      } else {
        if (!previous.await(cell - range_.begin, line[i])) return false;
        x = cells_.unpack(line[i]);
      }
      const Values after = Cells<Shape>::apply(factors[i], x, cells_.widen(own[i]));
      if (!task_.last()) {
        if (!next.reserve(cell - range_.begin + 1)) return false;
        next.put(cell - range_.begin, cells_.pack(after));
      }
      if (!task_.first()) previous.reset(cell - range_.begin);
      cells_.finish(cell, x, after);
    }
    return true;
  }

  const PeerView& view_;
  const ScanTask& task_;
  int lane_;
  const Group& group_;
  Cells<Shape> cells_;
  CellRange range_;
  int before_, after_;
};

}  // namespace seqpar
