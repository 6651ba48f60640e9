// Measures the FIFOs between ring neighbors: single tokens that circulate in the ring, then a stream from every rank to
// the next. Collective over all peers.
#pragma once

#include "kernels/channel.h"

namespace seqpar {

/// Times of one channel, in ns of the GPU's clock.
struct ProbeTimes {
  static constexpr std::uint32_t kTimedTokens = 48;
  static constexpr std::uint32_t kRowPackets = 2048;
  static constexpr std::uint32_t kTimedRows = 47;

  std::uint64_t tokens = 0;       ///< duration of kTimedTokens rounds of the ring; channel 0
  std::uint64_t streamBegin = 0;  ///< start of kTimedRows rows
  std::uint64_t streamEnd = 0;    ///< end of kTimedRows rows
};

template <class Memory, class Group>
class ProbeProgram {
 public:
  SEQPAR_DEVICE ProbeProgram(const PeerView& view, int channel, const Group& group, ChannelPositions& positions)
      : view_(view),
        channel_(channel),
        group_(group),
        steps_(view, channel, group, positions),
        next_((view.self + 1) % view.size),
        previous_((view.self + view.size - 1) % view.size) {}

  /// Tokens, on one channel, with no other traffic. Returns false on timeout.
  SEQPAR_DEVICE bool runTokens(ProbeTimes& times) {
    if (!reserve(kTokens)) return false;
    if (!advance(group_.thread() != 0 || passTokens(times.tokens), kTokens)) return false;
    steps_.finish();
    return true;
  }
  /// The stream, on all channels; `rows` of it are timed. Returns false on timeout.
  SEQPAR_DEVICE bool runStream(ProbeTimes& times, std::uint32_t rows = ProbeTimes::kTimedRows) {
    if (!stream(times, rows)) return false;
    steps_.finish();
    return true;
  }

 private:
  static constexpr std::uint32_t kRowPackets = ProbeTimes::kRowPackets;
  static constexpr std::uint32_t kFirstTokens = 8;  // not timed
  static constexpr std::uint32_t kTokens = kFirstTokens + ProbeTimes::kTimedTokens;

  SEQPAR_DEVICE bool reserve(std::uint32_t packets) {
    return steps_.reserve([&](int peer) { return peer == next_ ? packets : 0U; });
  }
  SEQPAR_DEVICE bool advance(bool ok, std::uint32_t packets) {
    if (!steps_.agreeStep(ok)) return false;
    steps_.endStep(
        false, [&](int peer) { return peer == next_ ? packets : 0U; },
        [&](int peer) { return peer == previous_ ? packets : 0U; });
    return true;
  }

  SEQPAR_DEVICE bool passTokens(std::uint64_t& ns) {
    const CursorSender<Memory> out = steps_.sender(next_);
    const Receiver<Memory> in = steps_.receiver(previous_);
    std::uint64_t start = 0;
    for (std::uint32_t i = 0; i < kTokens; ++i) {
      if (i == kFirstTokens) start = Memory::now();
      LamportPacket packet{{i, i, i, i}};
      if (view_.self == 0) out.put(i, packet);
      packet = in.poll(i);
      if (!in.await(i, packet)) return false;
      if (view_.self != 0) out.put(i, packet);
      in.reset(i);
    }
    ns = Memory::now() - start;
    return true;
  }

  SEQPAR_DEVICE bool stream(ProbeTimes& times, std::uint32_t rows) {
    for (std::uint32_t row = 0; row <= rows; ++row) {
      if (!reserve(kRowPackets)) return false;
      const bool ok = exchangeRow(steps_.sender(next_), steps_.receiver(previous_));
      if (!advance(ok, kRowPackets)) return false;
      if (row == 0) times.streamBegin = Memory::now();
    }
    times.streamEnd = Memory::now();
    return true;
  }

  SEQPAR_DEVICE bool exchangeRow(const CursorSender<Memory>& out, const Receiver<Memory>& in) const {
    constexpr int kPackets = 4;  // packets in flight per thread
    const auto threads = static_cast<std::uint32_t>(group_.threads());
    SEQPAR_ROLLED
    for (std::uint32_t begin = group_.thread(); begin < kRowPackets; begin += threads * kPackets) {
      LamportPacket packet[kPackets];
      SEQPAR_UNROLL
      for (int i = 0; i < kPackets; ++i) {
        const std::uint32_t index = begin + threads * static_cast<std::uint32_t>(i);
        if (index >= kRowPackets) continue;
        out.put(index, LamportPacket{{index, index, index, index}});
        packet[i] = in.poll(index);
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kPackets; ++i) {
        const std::uint32_t index = begin + threads * static_cast<std::uint32_t>(i);
        if (index < kRowPackets && !in.take(index, packet[i])) return false;
      }
    }
    return true;
  }

  const PeerView& view_;
  int channel_;
  const Group& group_;
  SteppedFifos<Memory, Group> steps_;
  int next_, previous_;
};

}  // namespace seqpar
