// Kernel argument of a scan of fast vecs (see vecs.h) without flags, the usual case. A small scan takes microseconds,
// and loading kernel parameters, packet by packet, takes tenths of one: so the host computes everything and packs it
// densely.
#pragma once

#include "kernels/arch/numbers.h"
#include "kernels/fifo.h"
#include "kernels/scan/task.h"

namespace seqpar {

struct FastTask : ScanArrays<LamportPacket> {
  Divider span;  ///< elements of a factor
  std::uint32_t vecs = 0;
  std::uint32_t channelVecs = 0;
  int position = 0;
  int positions = 1;
  seqparDecayForm_t decayForm = seqparDecayLinear;
  int channels = 1;                   ///< of the FIFOs, not of this scan
  int before = 0, after = 0;          ///< the previous and the next peer
  LamportPacket* in = nullptr;        ///< rings that the peers write, by peer and channel
  FifoState* states = nullptr;        ///< by peer and channel
  LamportPacket* outAfter = nullptr;  ///< the rings at the next peer, by channel
  std::int8_t peerAt[kMostPeers] = {};
  LamportPacket* out[kMostPeers] = {};  ///< the rings at the other peers, by position, then by channel

  SEQPAR_BOTH bool first() const { return position == 0; }
  SEQPAR_BOTH bool last() const { return position + 1 == positions; }
  SEQPAR_BOTH LamportPacket* inRing(int peer, int channel) const {
    return in + FifoLayout::number(channels, peer, channel) * kRingPackets;
  }
  SEQPAR_BOTH FifoState& fifo(int peer, int channel) const {
    return states[FifoLayout::number(channels, peer, channel)];
  }
  /// The vecs of a channel, at least one.
  SEQPAR_BOTH VecRange part(int channel) const {
    const std::uint32_t begin = channelVecs * static_cast<std::uint32_t>(channel);
    return {begin, vecs - begin < channelVecs ? vecs : begin + channelVecs};
  }
};

/// From a task of fast vecs without flags.
inline FastTask makeFastTask(const PeerView& view, const ScanTask& task) {
  FastTask fast;
  static_cast<ScanArrays<LamportPacket>&>(fast) = task.from<LamportPacket>(0, 0);
  fast.span = task.span;
  fast.vecs = task.elements / 4;
  fast.channelVecs = task.channelElements / 4;
  fast.position = task.position;
  fast.positions = task.positions;
  fast.decayForm = task.decayForm;
  fast.channels = view.channels;
  fast.in = reinterpret_cast<LamportPacket*>(view.windows[view.self] + FifoLayout::ringOffset(view.channels, 0, 0));
  fast.states = fifoState(view, 0, 0);
  for (int p = 0; p < task.positions; ++p) {
    fast.peerAt[p] = task.peerAt[p];
    fast.out[p] = reinterpret_cast<LamportPacket*>(view.windows[task.peerAt[p]] +
                                                   FifoLayout::ringOffset(view.channels, view.self, 0));
  }
  if (!fast.first()) fast.before = fast.peerAt[fast.position - 1];
  if (!fast.last()) fast.after = fast.peerAt[fast.position + 1];
  fast.outAfter = fast.out[fast.last() ? fast.position : fast.position + 1];  // unused on the last position
  return fast;
}

struct FastValues {
  float at[4];
};

SEQPAR_DEVICE FastValues valuesOf(const LamportPacket& packet) {
  return {{asFloat(packet.word[0]), asFloat(packet.word[1]), asFloat(packet.word[2]), asFloat(packet.word[3])}};
}
SEQPAR_DEVICE LamportPacket packetOf(const FastValues& values) {
  return {{asBits(values.at[0]), asBits(values.at[1]), asBits(values.at[2]), asBits(values.at[3])}};
}
SEQPAR_DEVICE LamportPacket sendablePacketOf(const FastValues& values) {
  LamportPacket packet = packetOf(values);
  for (std::uint32_t& word : packet.word) word = sendable(word, kAbsentAsFloat);
  return packet;
}

SEQPAR_DEVICE LamportPacket absentPacket() {
  return {{kAbsent, kAbsent, kAbsent, kAbsent}};
}

/// c x + s; s if c is 0.
SEQPAR_DEVICE FastValues applied(float c, const FastValues& x, const FastValues& s) {
  FastValues after = s;
  if (c != 0.0F) {
    for (int i = 0; i < 4; ++i) after.at[i] = fmaf(c, x.at[i], s.at[i]);
  }
  return after;
}

/// This rank's part of a vec, loaded but not used yet.
struct FastVec {
  LamportPacket own{};
  float factor = 1;
};

SEQPAR_DEVICE std::uint32_t factorOf(const FastTask& task, std::uint32_t vec) {
  return task.span.quotient(4 * vec);
}

SEQPAR_DEVICE FastVec fetched(const FastTask& task, std::uint32_t vec) {
  FastVec mine;
  if (task.state != nullptr) mine.own = readPacket(task.state + vec);
  if (task.transition != nullptr) mine.factor = task.transition[factorOf(task, vec)];
  return mine;
}

/// Writes the outputs of a vec if `live`, without a branch.
template <class Memory>
SEQPAR_DEVICE void writeFast(const FastTask& task, bool live, std::uint32_t vec, const FastValues& x,
                             const FastValues& after) {
  const auto write = [&](LamportPacket* to, const FastValues& values) {
    Memory::writeIf(live && to != nullptr, to == nullptr ? nullptr : to + vec, packetOf(values));
  };
  write(task.prefix, x);
  write(task.total, after);
}

SEQPAR_DEVICE float decayed(const FastTask& task, float given) {
  if (task.decayForm == seqparDecayLinear) return given;
  return task.decayForm == seqparDecayLog ? expf(given) : exp2f(given);
}

}  // namespace seqpar
