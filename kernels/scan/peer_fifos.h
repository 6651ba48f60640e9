// The channels between a lane and all positions, for programs for plain cells in which everybody sends once.
#pragma once

#include "lane.h"
#include "scan/plain_task.h"

namespace seqpar {

/// Opened by all threads, used by all, and closed behind a barrier. `lines(from, to)` gives the lines that a position
/// sends another.
template <class Memory, class Group>
class PlainPorts {
 public:
  SEQPAR_LANE PlainPorts(const PeerView& view, const PlainTask& task, int lane, const Group& group,
                         LanePositions& positions)
      : view_(view), task_(task), lane_(lane), group_(group), at_(positions) {}

  /// A barrier. Waits for room, too. False: gave up.
  template <class Lines>
  SEQPAR_LANE bool open(const Lines& lines) const {
    bool ok = true;
    SEQPAR_ROLLED
    for (int p = group_.thread(); p < task_.positions; p += group_.threads()) {
      if (p == task_.position) continue;
      const int peer = task_.peerAt[p];
      const ChannelState state = begun(task_.channel(peer, lane_));
      at_.state[p] = state;
      at_.ports[p].sent = static_cast<std::uint32_t>(state.sent);
      at_.ports[p].received = static_cast<std::uint32_t>(state.received);
      const std::uint32_t count = lines(task_.position, p);
      if (count == 0) continue;
      Sender<Memory> out(view_, peer, lane_, state.sent, state.credit);
      ok = out.reserve(count) && ok;
      at_.state[p].credit = out.credit();
    }
    return !group_.any(!ok);
  }

  SEQPAR_LANE Line* outLine(int to, std::uint32_t index) const {
    return slotOf(task_.out[to] + static_cast<std::size_t>(lane_) * kRingLines, at_.ports[to].sent, index);
  }
  SEQPAR_LANE Line* inLine(int from, std::uint32_t index) const {
    return slotOf(task_.inRing(task_.peerAt[from], lane_), at_.ports[from].received, index);
  }
  /// Words are numbered through the lines behind line `begin`.
  SEQPAR_LANE std::uint32_t* outWord(int to, std::uint32_t begin, std::uint32_t word) const {
    return &outLine(to, begin + word / 4)->word[word % 4];
  }
  SEQPAR_LANE std::uint32_t* inWord(int from, std::uint32_t begin, std::uint32_t word) const {
    return &inLine(from, begin + word / 4)->word[word % 4];
  }

  /// By one warp: puts back the lines of words, which many threads had wanted, counts, and gives credit. `words`: how
  /// many lines of them a position sends this one, if any; wordsAt(from): the first of them.
  template <class Lines, class WordsAt>
  SEQPAR_LANE void close(const Lines& lines, std::uint32_t words, const WordsAt& wordsAt) const {
    if (!group_.inFirstWarp()) return;
    const auto warp = group_.warp();
    // Nothing comes before position 0, which sends no factors.
    SEQPAR_ROLLED
    for (int from = 1; from < task_.positions; ++from) {
      const std::uint32_t begin = wordsAt(from);
      if (from == task_.position || begin >= lines(from, task_.position)) continue;
      SEQPAR_ROLLED
      for (std::uint32_t i = warp.thread(); i < words; i += warp.threads()) {
        Memory::store(inLine(from, begin + i), absentLine());
      }
    }
    group_.warpAll(true);
    SEQPAR_ROLLED
    for (int p = warp.thread(); p < task_.positions; p += warp.threads()) {
      if (p == task_.position) continue;
      const int peer = task_.peerAt[p];
      ChannelState state = at_.state[p];
      state.sent += lines(task_.position, p);
      countTaken<Memory>(view_, peer, lane_, state, lines(p, task_.position));
      task_.channel(peer, lane_) = state;
    }
  }

 private:
  const PeerView& view_;
  const PlainTask& task_;
  int lane_;
  const Group& group_;
  LanePositions& at_;
};

}  // namespace seqpar
