// A measurement of the channels between ring neighbours: tokens that go round one at a time, then a stream from
// everyone to the next. Collective over all peers; all lanes take part.
#pragma once

#include "lane.h"

namespace seqpar {

struct ProbeTimes {
  static constexpr std::uint32_t kTimedTokens = 48;
  static constexpr std::uint32_t kRowLines = kRingLines / 2;
  static constexpr std::uint32_t kTimedRows = 31;

  std::uint64_t tokenNs = 0;   ///< of kTimedTokens rounds of the ring
  std::uint64_t streamNs = 0;  ///< of kTimedRows rows of all lanes
};

template <class Memory, class Group>
class ProbeLane {
 public:
  SEQPAR_LANE ProbeLane(const PeerView& view, int lane, const Group& group, LanePositions& positions)
      : view_(view),
        lane_(lane),
        group_(group),
        steps_(view, lane, group, positions),
        next_((view.self + 1) % view.size),
        previous_((view.self + view.size - 1) % view.size) {}

  /// False: gave up.
  SEQPAR_LANE bool run(ProbeTimes& times) {
    bool ok = true;
    if (lane_ == 0 && group_.thread() == 0) ok = passTokens(times.tokenNs);
    const auto tokens = lane_ == 0 ? kTokens : 0U;
    if (!advance(ok, tokens) || !stream(times.streamNs)) return false;
    steps_.finish();
    return true;
  }

 private:
  static constexpr std::uint32_t kRowLines = ProbeTimes::kRowLines;
  static constexpr std::uint32_t kFirstTokens = 8;  // not timed
  static constexpr std::uint32_t kTokens = kFirstTokens + ProbeTimes::kTimedTokens;

  SEQPAR_LANE bool advance(bool ok, std::uint32_t lines) {
    return steps_.advance(
        ok, [&](int peer) { return peer == next_ ? lines : 0U; },
        [&](int peer) { return peer == previous_ ? lines : 0U; });
  }

  SEQPAR_LANE bool passTokens(std::uint64_t& ns) {
    Sender<Memory> out = steps_.sender(next_);
    const Receiver<Memory> in = steps_.receiver(previous_);
    std::uint64_t start = 0;
    if (!out.reserve(kTokens)) return false;
    for (std::uint32_t i = 0; i < kTokens; ++i) {
      if (i == kFirstTokens) start = Memory::now();
      Line line{{i, i, i, i}};
      if (view_.self == 0) out.put(i, line);
      line = in.look(i);
      if (!in.take(i, line)) return false;
      if (view_.self != 0) out.put(i, line);
    }
    ns = Memory::now() - start;
    return true;
  }

  SEQPAR_LANE bool stream(std::uint64_t& ns) {
    std::uint64_t start = 0;
    for (std::uint32_t row = 0; row <= ProbeTimes::kTimedRows; ++row) {
      Sender<Memory> out = steps_.sender(next_);
      const Receiver<Memory> in = steps_.receiver(previous_);
      bool ok = out.reserve(kRowLines);
      for (std::uint32_t i = group_.thread(); ok && i < kRowLines; i += group_.threads()) {
        out.put(i, Line{{i, i, i, i}});
      }
      for (std::uint32_t i = group_.thread(); ok && i < kRowLines; i += group_.threads()) {
        Line line = in.look(i);
        ok = in.take(i, line);
      }
      if (!advance(ok, kRowLines)) return false;
      if (row == 0) start = Memory::now();
    }
    ns = Memory::now() - start;
    return true;
  }

  const PeerView& view_;
  int lane_;
  const Group& group_;
  SteppedLane<Memory, Group> steps_;
  int next_, previous_;
};

}  // namespace seqpar
