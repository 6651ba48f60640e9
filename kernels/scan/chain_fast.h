// CHAIN of plain cells without flags, in as few instructions after a line's arrival as can be. On the wire as in
// chain_lane.h.
#pragma once

#include "lane.h"
#include "scan/plain_task.h"

namespace seqpar {

/// One lane's part. Its threads go through rows of cells, of which each thread has kCells, and those in flight at once.
/// kOneRow: there is one row only; see fits().
template <class Memory, class Group, int kCells, bool kOneRow>
class ChainPlainLane {
 public:
  SEQPAR_LANE ChainPlainLane(const PeerView& view, const PlainTask& task, int lane, const Group& group,
                             LanePositions& shared)
      : view_(view), task_(task), lane_(lane), group_(group), shared_(shared), range_(task.part(lane)) {}

  /// Whether lanes of so many threads can do their parts.
  static bool fits(const ScanTask& task, std::uint32_t threads) {
    return !kOneRow || task.part(0, 4).size() <= threads * kCells;
  }

  /// False: gave up.
  SEQPAR_LANE bool run() {
    const auto step = static_cast<std::uint32_t>(group_.threads()) * kCells;
    Row row;
    place(row, range_.begin);
    fetch(row);
    ChannelState in{};
    ChannelState out{};
    if (!task_.first()) in = begun(task_.channel(task_.before, lane_));
    if (!task_.last()) out = begun(task_.channel(task_.after, lane_));
    const Ends ends{task_.inRing(task_.before, lane_), task_.outAfter + static_cast<std::size_t>(lane_) * kRingLines,
                    static_cast<std::uint32_t>(in.received) - range_.begin,
                    static_cast<std::uint32_t>(out.sent) - range_.begin};
    Sender<Memory> next(view_, task_.after, lane_, out.sent, out.credit);
    bool ok = true;
    if constexpr (kOneRow) {
      ok = !row.has[0] || hopRow(row, ends, next);
    } else {
      SpanCredit<Memory, Group> credit(view_, task_.before, lane_, group_, shared_, in,
                                       task_.first() ? 0 : range_.size());
      SEQPAR_ROLLED
      for (std::uint32_t begin = range_.begin; ok && begin < range_.end; begin += step) {
        const Row now = row;
        place(row, begin + step);
        if (kCells == 1) fetch(row);
        ok = !now.has[0] || hopRow(now, ends, next);
        if (kCells > 1) fetch(row);  // there are no registers for two rows
        for (int i = 0; i < kCells; ++i) prefetch(row.cell[i] + kAhead * step);
        ok = credit.through(ok, (begin + step < range_.end ? begin + step : range_.end) - range_.begin);
      }
      in.given = credit.given();
    }
    if (group_.any(!ok)) return false;
    if (group_.thread() == 0) finish(in, out, next.credit());
    return true;
  }

 private:
  /// A thread's cells of a row, and this rank's part of them.
  struct Row {
    std::uint32_t cell[kCells];
    bool has[kCells];
    PlainCell mine[kCells];
  };
  /// Rings, and the numbers of lines in them less the numbers of their cells.
  struct Ends {
    Line* in;
    Line* out;
    std::uint32_t inAt, outAt;
  };

  SEQPAR_LANE void place(Row& row, std::uint32_t begin) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      row.cell[i] = begin + static_cast<std::uint32_t>(group_.threads() * i + group_.thread());
      row.has[i] = row.cell[i] < range_.end;
    }
  }
  static constexpr std::uint32_t kAhead = 2;  // rows
  SEQPAR_LANE void prefetch(std::uint32_t cell) const {
    if (task_.state != nullptr && cell < range_.end) Memory::prefetch(task_.state + cell);
  }
  SEQPAR_LANE void fetch(Row& row) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) row.mine[i] = row.has[i] ? fetched(task_, row.cell[i]) : PlainCell{};
  }

  SEQPAR_LANE bool hopRow(const Row& row, const Ends& ends, Sender<Memory>& next) const {
    if (!task_.last()) {
      std::uint32_t last = row.cell[0];
      SEQPAR_UNROLL
      for (int i = 1; i < kCells; ++i) last = row.has[i] ? row.cell[i] : last;
      if (!next.reserve(last - range_.begin + 1)) return false;
    }
    Line* in[kCells];
    Line* out[kCells];
    PlainValues own[kCells];
    float factor[kCells];
    SEQPAR_UNROLL
    for (int i = 0; i < kCells; ++i) {
      // Where there is no further cell, it looks where the first one does.
      const std::uint32_t cell = row.has[i] ? row.cell[i] : row.cell[0];
      in[i] = slotOf(ends.in, ends.inAt, cell);
      out[i] = slotOf(ends.out, ends.outAt, cell);
      own[i] = valuesOf(row.mine[i].own);
      factor[i] = decayed(task_, row.mine[i].factor);
    }
    if (task_.first()) {
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        PlainValues x{};
        if (task_.initial != nullptr && row.has[i]) x = valuesOf(readLine(task_.initial + row.cell[i]));
        const PlainValues after = task_.initial == nullptr ? own[i] : applied(factor[i], x, own[i]);
        Memory::storeIf(row.has[i] && !task_.last(), out[i], sendableLineOf(after));
        writePlain<Memory>(task_, row.has[i], row.cell[i], x, after);
      }
      return true;
    }
    // Everything is done at every look, though without effect: when the lines come, the instructions are at hand.
    Wait<Memory> wait(view_, task_.before);
    SEQPAR_ROLLED
    for (;;) {
      Line line[kCells];
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) line[i] = Memory::load(in[i]);
      bool live = true;
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) live = live && complete(line[i]);
      SEQPAR_UNROLL
      for (int i = 0; i < kCells; ++i) {
        const bool here = live && row.has[i];
        const PlainValues x = valuesOf(line[i]);
        const PlainValues after = applied(factor[i], x, own[i]);
        Memory::storeIf(here && !task_.last(), out[i], sendableLineOf(after));
        Memory::storeIf(here, in[i], absentLine());
        writePlain<Memory>(task_, here, row.cell[i], x, after);
      }
      if (live) return true;
      if (wait.over()) return false;
    }
  }

  /// After a barrier behind everything, by one thread.
  SEQPAR_LANE void finish(ChannelState in, const ChannelState& out, std::uint64_t credit) const {
    if (!task_.last()) {
      ChannelState& state = task_.channel(task_.after, lane_);
      state.sent = out.sent + range_.size();
      state.credit = credit;
    }
    if (task_.first()) return;
    countTaken<Memory>(view_, task_.before, lane_, in, range_.size());
    ChannelState& state = task_.channel(task_.before, lane_);
    state.received = in.received;
    state.given = in.given;
  }

  const PeerView& view_;
  const PlainTask& task_;
  int lane_;
  const Group& group_;
  LanePositions& shared_;
  CellRange range_;
};

}  // namespace seqpar
