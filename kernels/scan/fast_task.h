// A scan of plain cells (see cells.h) without flags, the usual one, as its own kernels see it. A small one is done in
// microseconds, of which a kernel's parameters, which come from memory line by line, cost tenths: so everything is
// worked out by the host and lies close together.
#pragma once

#include "channel.h"
#include "numbers.h"
#include "task.h"

namespace seqpar {

struct PlainTask {
  const Line* state = nullptr;
  const float* transition = nullptr;  ///< null: ones
  const Line* initial = nullptr;      ///< null: zeros
  Line* prefix = nullptr;             ///< null: not wanted
  Line* total = nullptr;              ///< null: not wanted
  Divider span;                       ///< elements of a factor
  std::uint32_t cells = 0;
  std::uint32_t laneCells = 0;
  int position = 0;
  int positions = 1;
  seqparDecayForm_t decayForm = seqparDecayLinear;
  int lanes = 1;                   ///< of the channels, not of this scan
  int before = 0, after = 0;       ///< the peers next to this one
  Line* in = nullptr;              ///< rings of what peers send, by peer and lane
  ChannelState* states = nullptr;  ///< by peer and lane
  Line* outAfter = nullptr;        ///< the rings at the peer after this one, by lane
  std::int8_t peerAt[kMostPeers] = {};
  Line* out[kMostPeers] = {};  ///< the rings at others, by position; then by lane

  SEQPAR_BOTH bool first() const { return position == 0; }
  SEQPAR_BOTH bool last() const { return position + 1 == positions; }
  SEQPAR_BOTH Line* inRing(int peer, int lane) const {
    return in + ChannelLayout::number(lanes, peer, lane) * kRingLines;
  }
  SEQPAR_BOTH ChannelState& channel(int peer, int lane) const {
    return states[ChannelLayout::number(lanes, peer, lane)];
  }
  /// The cells of a lane; none is without.
  SEQPAR_BOTH CellRange part(int lane) const {
    const std::uint32_t begin = laneCells * static_cast<std::uint32_t>(lane);
    return {begin, cells - begin < laneCells ? cells : begin + laneCells};
  }
};

/// Of a task of plain cells without flags.
inline PlainTask makePlainTask(const PeerView& view, const ScanTask& task) {
  PlainTask plain;
  plain.state = reinterpret_cast<const Line*>(task.state);
  plain.transition = task.transition;
  plain.initial = reinterpret_cast<const Line*>(task.initial);
  plain.prefix = reinterpret_cast<Line*>(task.prefix);
  plain.total = reinterpret_cast<Line*>(task.total);
  plain.span = task.span;
  plain.cells = task.elements / 4;
  plain.laneCells = task.laneElements / 4;
  plain.position = task.position;
  plain.positions = task.positions;
  plain.decayForm = task.decayForm;
  plain.lanes = view.lanes;
  plain.in = reinterpret_cast<Line*>(view.windows[view.self] + ChannelLayout::ringOffset(view.lanes, 0, 0));
  plain.states = channelState(view, 0, 0);
  for (int p = 0; p < task.positions; ++p) {
    plain.peerAt[p] = task.peerAt[p];
    plain.out[p] =
        reinterpret_cast<Line*>(view.windows[task.peerAt[p]] + ChannelLayout::ringOffset(view.lanes, view.self, 0));
  }
  if (!plain.first()) plain.before = plain.peerAt[plain.position - 1];
  if (!plain.last()) plain.after = plain.peerAt[plain.position + 1];
  plain.outAfter = plain.out[plain.last() ? plain.position : plain.position + 1];  // the last one does not use it
  return plain;
}

struct PlainValues {
  float at[4];
};

SEQPAR_LANE PlainValues valuesOf(const Line& line) {
  return {{asFloat(line.word[0]), asFloat(line.word[1]), asFloat(line.word[2]), asFloat(line.word[3])}};
}
SEQPAR_LANE Line lineOf(const PlainValues& values) {
  return {{asBits(values.at[0]), asBits(values.at[1]), asBits(values.at[2]), asBits(values.at[3])}};
}
SEQPAR_LANE Line sendableLineOf(const PlainValues& values) {
  Line line = lineOf(values);
  for (std::uint32_t& word : line.word) word = sendable(word, kAbsentAsFloat);
  return line;
}

SEQPAR_LANE Line absentLine() {
  return {{kAbsent, kAbsent, kAbsent, kAbsent}};
}

/// c x + s, and s itself where c is 0.
SEQPAR_LANE PlainValues applied(float c, const PlainValues& x, const PlainValues& s) {
  PlainValues after = s;
  if (c != 0.0F) {
    for (int i = 0; i < 4; ++i) after.at[i] = fmaf(c, x.at[i], s.at[i]);
  }
  return after;
}

/// This rank's part of a cell, only fetched.
struct PlainCell {
  Line own{};
  float factor = 1;
};

SEQPAR_LANE std::uint32_t factorOf(const PlainTask& task, std::uint32_t cell) {
  return task.span.quotient(4 * cell);
}

SEQPAR_LANE PlainCell fetched(const PlainTask& task, std::uint32_t cell) {
  PlainCell mine;
  if (task.state != nullptr) mine.own = readLine(task.state + cell);
  if (task.transition != nullptr) mine.factor = task.transition[factorOf(task, cell)];
  return mine;
}

/// Writes the outputs of a cell if `live`, without a branch.
template <class Memory>
SEQPAR_LANE void writePlain(const PlainTask& task, bool live, std::uint32_t cell, const PlainValues& x,
                            const PlainValues& after) {
  const auto write = [&](Line* to, const PlainValues& values) {
    Memory::writeIf(live && to != nullptr, to == nullptr ? nullptr : to + cell, lineOf(values));
  };
  write(task.prefix, x);
  write(task.total, after);
}

SEQPAR_LANE float decayed(const PlainTask& task, float given) {
  if (task.decayForm == seqparDecayLinear) return given;
  return task.decayForm == seqparDecayLog ? expf(given) : exp2f(given);
}

}  // namespace seqpar
