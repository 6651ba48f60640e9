// CHAIN of plain cells without flags, in as few instructions after a line's arrival as can be. On the wire as in
// chain_lane.h.
#pragma once

#include "lane.h"
#include "scan/plain_task.h"

namespace seqpar {

/// A thread has a cell in each row of the lane's.
template <class Memory, class Group>
class ChainPlainLane {
 public:
  SEQPAR_LANE ChainPlainLane(const PeerView& view, const PlainTask& task, int lane, const Group& group,
                             LanePositions& shared)
      : view_(view), task_(task), lane_(lane), group_(group), shared_(shared), range_(task.part(lane)) {}

  /// False: gave up.
  SEQPAR_LANE bool run() {
    const auto row = static_cast<std::uint32_t>(group_.threads());
    std::uint32_t cell = range_.begin + static_cast<std::uint32_t>(group_.thread());
    PlainCell mine = fetch(cell);
    ChannelState in{};
    ChannelState out{};
    if (!task_.first()) in = task_.before.state[lane_];
    if (!task_.last()) out = task_.after.state[lane_];
    Sender<Memory> next(view_, task_.after.peer, lane_, out.sent, out.credit);
    StreamCredit<Memory, Group> credit(view_, task_.before.peer, lane_, group_, shared_, in,
                                       task_.first() ? 0 : range_.size());
    const auto inAt = static_cast<std::uint32_t>(in.received) - range_.begin;
    const auto outAt = static_cast<std::uint32_t>(out.sent) - range_.begin;
    bool ok = true;
    SEQPAR_ROLLED
    for (std::uint32_t begin = range_.begin; ok && begin < range_.end; begin += row, cell += row) {
      const PlainCell now = mine;
      mine = fetch(cell + row);
      if (cell < range_.end) {
        ok = task_.last() || next.reserve(cell - range_.begin + 1);
        ok = ok &&
             hop(cell, now, slotOf(ringOf(task_.before.in), inAt, cell), slotOf(ringOf(task_.after.out), outAt, cell));
      }
      ok = credit.through(ok, (begin + row < range_.end ? begin + row : range_.end) - range_.begin);
    }
    if (group_.any(!ok)) return false;
    if (group_.thread() != 0) return true;
    if (!task_.last()) {
      ChannelState& state = task_.after.state[lane_];
      state.sent = out.sent + range_.size();
      state.credit = next.credit();
    }
    if (!task_.first()) credit.finish(task_.before.state[lane_], range_.size());
    return true;
  }

 private:
  SEQPAR_LANE PlainCell fetch(std::uint32_t cell) const {
    return cell < range_.end ? fetched(task_, cell) : PlainCell{};
  }
  SEQPAR_LANE Line* ringOf(Line* rings) const { return rings + static_cast<std::size_t>(lane_) * kRingLines; }

  SEQPAR_LANE bool hop(std::uint32_t cell, const PlainCell& mine, Line* in, Line* out) const {
    const PlainValues own = valuesOf(mine.own);
    float factor = decayed(task_, mine.factor);
    if (task_.first()) {
      PlainValues x{};
      if (task_.initial != nullptr) {
        x = valuesOf(readLine(task_.initial + cell));
      } else {
        factor = 0;
      }
      const PlainValues after = applied(factor, x, own);
      Memory::storeIf(!task_.last(), out, sendableLineOf(after));
      write(true, cell, x, after);
      return true;
    }
    // Everything is done at every look, though without effect: when the line comes, the instructions are at hand.
    Wait<Memory> wait(view_, task_.before.peer);
    SEQPAR_ROLLED
    for (;;) {
      const Line line = Memory::load(in);
      const bool live = complete(line);
      const PlainValues x = valuesOf(line);
      const PlainValues after = applied(factor, x, own);
      Memory::storeIf(live && !task_.last(), out, sendableLineOf(after));
      Memory::storeIf(live, in, Line{{kAbsent, kAbsent, kAbsent, kAbsent}});
      write(live, cell, x, after);
      if (live) return true;
      if (wait.over()) return false;
    }
  }

  SEQPAR_LANE void write(bool live, std::uint32_t cell, const PlainValues& x, const PlainValues& after) const {
    Memory::writeIf(live && task_.prefix != nullptr, task_.prefix + cell, lineOf(x));
    Memory::writeIf(live && task_.total != nullptr, task_.total + cell, lineOf(after));
  }

  const PeerView& view_;
  const PlainTask& task_;
  int lane_;
  const Group& group_;
  LanePositions& shared_;
  CellRange range_;
};

}  // namespace seqpar
