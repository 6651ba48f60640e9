// A measurement of the channels between ring neighbours: tokens that go round one at a time, then a stream from
// everyone to the next. Collective over all peers.
#pragma once

#include "lane.h"

namespace seqpar {

/// Of one lane, in ns of the GPU's clock.
struct ProbeTimes {
  static constexpr std::uint32_t kTimedTokens = 48;
  static constexpr std::uint32_t kRowLines = 2048;
  static constexpr std::uint32_t kTimedRows = 47;

  std::uint64_t tokens = 0;       ///< how long kTimedTokens rounds of the ring took; lane 0
  std::uint64_t streamBegin = 0;  ///< when kTimedRows rows began,
  std::uint64_t streamEnd = 0;    ///< and when they were through
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

  /// Tokens: of one lane, while nothing else moves. False: gave up.
  SEQPAR_LANE bool runTokens(ProbeTimes& times) {
    if (!reserve(kTokens)) return false;
    if (!advance(group_.thread() != 0 || passTokens(times.tokens), kTokens)) return false;
    steps_.finish();
    return true;
  }
  /// The stream, of all lanes; `rows` of it are timed. False: gave up.
  SEQPAR_LANE bool runStream(ProbeTimes& times, std::uint32_t rows = ProbeTimes::kTimedRows) {
    if (!stream(times, rows)) return false;
    steps_.finish();
    return true;
  }

 private:
  static constexpr std::uint32_t kRowLines = ProbeTimes::kRowLines;
  static constexpr std::uint32_t kFirstTokens = 8;  // not timed
  static constexpr std::uint32_t kTokens = kFirstTokens + ProbeTimes::kTimedTokens;

  SEQPAR_LANE bool reserve(std::uint32_t lines) {
    return steps_.reserve([&](int peer) { return peer == next_ ? lines : 0U; });
  }
  SEQPAR_LANE bool advance(bool ok, std::uint32_t lines) {
    if (!steps_.settle(ok)) return false;
    steps_.advance(
        false, [&](int peer) { return peer == next_ ? lines : 0U; },
        [&](int peer) { return peer == previous_ ? lines : 0U; });
    return true;
  }

  SEQPAR_LANE bool passTokens(std::uint64_t& ns) {
    const PortSender<Memory> out = steps_.sender(next_);
    const Receiver<Memory> in = steps_.receiver(previous_);
    std::uint64_t start = 0;
    for (std::uint32_t i = 0; i < kTokens; ++i) {
      if (i == kFirstTokens) start = Memory::now();
      Line line{{i, i, i, i}};
      if (view_.self == 0) out.put(i, line);
      line = in.look(i);
      if (!in.await(i, line)) return false;
      if (view_.self != 0) out.put(i, line);
      in.reset(i);
    }
    ns = Memory::now() - start;
    return true;
  }

  SEQPAR_LANE bool stream(ProbeTimes& times, std::uint32_t rows) {
    for (std::uint32_t row = 0; row <= rows; ++row) {
      if (!reserve(kRowLines)) return false;
      const bool ok = exchangeRow(steps_.sender(next_), steps_.receiver(previous_));
      if (!advance(ok, kRowLines)) return false;
      if (row == 0) times.streamBegin = Memory::now();
    }
    times.streamEnd = Memory::now();
    return true;
  }

  SEQPAR_LANE bool exchangeRow(const PortSender<Memory>& out, const Receiver<Memory>& in) const {
    constexpr int kLines = 4;  // that a thread has in flight
    const auto threads = static_cast<std::uint32_t>(group_.threads());
    SEQPAR_ROLLED
    for (std::uint32_t begin = group_.thread(); begin < kRowLines; begin += threads * kLines) {
      Line line[kLines];
      SEQPAR_UNROLL
      for (int i = 0; i < kLines; ++i) {
        const std::uint32_t index = begin + threads * static_cast<std::uint32_t>(i);
        if (index >= kRowLines) continue;
        out.put(index, Line{{index, index, index, index}});
        line[i] = in.look(index);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kLines; ++i) {
        const std::uint32_t index = begin + threads * static_cast<std::uint32_t>(i);
        if (index < kRowLines && !in.take(index, line[i])) return false;
      }
    }
    return true;
  }

  const PeerView& view_;
  int lane_;
  const Group& group_;
  SteppedLane<Memory, Group> steps_;
  int next_, previous_;
};

}  // namespace seqpar
