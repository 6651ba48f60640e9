// FIFOs between a channel and all positions, for programs for fast vecs that send once.
#pragma once

#include "kernels/channel.h"
#include "kernels/scan/fast_task.h"

namespace seqpar {

/// All threads open and use the FIFOs, and close them after a barrier. `packets(from, to)` returns the number of
/// packets that one position sends to another.
template <class Memory, class Group>
class PeerFifos {
 public:
  SEQPAR_DEVICE PeerFifos(const PeerView& view, const FastTask& task, int channel, const Group& group,
                          ChannelPositions& positions)
      : view_(view), task_(task), channel_(channel), group_(group), at_(positions) {}

  /// A barrier. Also waits for space. Returns false on timeout.
  template <class Packets>
  SEQPAR_DEVICE bool open(const Packets& packets) const {
    bool ok = true;
    SEQPAR_ROLLED
    for (int p = group_.thread(); p < task_.positions; p += group_.threads()) {
      if (p == task_.position) continue;
      const int peer = task_.peerAt[p];
      const FifoState state = alignedToCall(task_.fifo(peer, channel_));
      at_.state[p] = state;
      at_.place(p);
      const std::uint32_t count = packets(task_.position, p);
      if (count == 0) continue;
      Sender<Memory> out(view_, peer, channel_, state.sent, state.credit);
      ok = out.reserve(count) && ok;
      at_.state[p].credit = out.credit();
    }
    return !group_.any(!ok);
  }

  SEQPAR_DEVICE LamportPacket* outPacket(int to, std::uint32_t index) const {
    return packetAt(task_.out[to] + static_cast<std::size_t>(channel_) * kRingPackets, at_.cursors[to].sent, index);
  }
  SEQPAR_DEVICE LamportPacket* inPacket(int from, std::uint32_t index) const {
    return packetAt(task_.inRing(task_.peerAt[from], channel_), at_.cursors[from].received, index);
  }
  /// Words are numbered from the first packet of words on.
  SEQPAR_DEVICE std::uint32_t* outWord(int to, std::uint32_t begin, std::uint32_t word) const {
    return &outPacket(to, begin + word / 4)->word[word % 4];
  }
  SEQPAR_DEVICE std::uint32_t* inWord(int from, std::uint32_t begin, std::uint32_t word) const {
    return &inPacket(from, begin + word / 4)->word[word % 4];
  }

  /// Called by one warp: resets the packets of words, which several threads read, updates the counters, and gives
  /// credit. `words`: packets of words that a position sends to this one, if any; wordsAt(from): the first of them.
  template <class Packets, class WordsAt>
  SEQPAR_DEVICE void close(const Packets& packets, std::uint32_t words, const WordsAt& wordsAt) const {
    if (!group_.inFirstWarp()) return;
    const auto warp = group_.warp();
    // Position 0 has no predecessor and sends no factors.
    SEQPAR_ROLLED
    for (int from = 1; from < task_.positions; ++from) {
      const std::uint32_t begin = wordsAt(from);
      if (from == task_.position || begin >= packets(from, task_.position)) continue;
      SEQPAR_ROLLED
      for (std::uint32_t i = warp.thread(); i < words; i += warp.threads()) {
        Memory::store(inPacket(from, begin + i), absentPacket());
      }
    }
    group_.warpAll(true);
    SEQPAR_ROLLED
    for (int p = warp.thread(); p < task_.positions; p += warp.threads()) {
      if (p == task_.position) continue;
      const int peer = task_.peerAt[p];
      FifoState state = at_.state[p];
      state.sent += packets(task_.position, p);
      countReceived<Memory>(view_, peer, channel_, state, packets(p, task_.position));
      task_.fifo(peer, channel_) = state;
    }
  }

 private:
  const PeerView& view_;
  const FastTask& task_;
  int channel_;
  const Group& group_;
  ChannelPositions& at_;
};

}  // namespace seqpar
