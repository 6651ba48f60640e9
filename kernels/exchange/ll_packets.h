// Short payloads through byte FIFOs, in packets of 12 bytes and the number of the ring's epoch: arrival is in the data,
// and a payload of any bit pattern takes one store. One warp at either end processes a block of packets.
#pragma once

#include "kernels/exchange/regions.h"

namespace seqpar::device {

SEQPAR_DEVICE std::uint32_t blocksOf(const Part& part) {
  return (static_cast<std::uint32_t>(part.end - part.begin) + ByteFifoLayout::kBlockBytes - 1) /
         ByteFifoLayout::kBlockBytes;
}

/// Offset of block `block` of a byte FIFO in a ring, and the flag of its packets. No earlier epoch has that flag: rings
/// are initially zero.
struct BlockPlace {
  std::size_t offset;
  std::uint32_t flag;

  SEQPAR_DEVICE explicit BlockPlace(std::uint64_t block)
      : offset(ByteFifoLayout::kPackets + block % ByteFifoLayout::kBlocks * (ByteFifoLayout::kBlockPackets * 16)),
        flag(static_cast<std::uint32_t>(block / ByteFifoLayout::kBlocks + 1)) {}
};

/// Calls work(payload, block) for this warp's blocks of all payloads.
template <class Group, class Work>
SEQPAR_DEVICE void forBlocks(const PeerPayload* payloads, int count, int channel, const Group& group,
                             const Work& work) {
  auto item = static_cast<std::uint32_t>(group.warp());
  SEQPAR_ROLLED
  for (int i = 0; i < count; ++i) {
    if (payloads[i].chunk != 0) continue;
    const std::uint32_t blocks = blocksOf(partOf(payloads[i], channel));
    SEQPAR_ROLLED
    for (; item < blocks; item += static_cast<std::uint32_t>(group.warps())) work(payloads[i], item);
    item -= blocks;
  }
}

/// Sends all payloads of the list that use packets. Returns false on timeout.
template <class Memory, class Group>
SEQPAR_DEVICE bool sendPackets(const WaitPolicy& waitPolicy, const RegionArg* regions, const PeerPayload* payloads,
                               int count, int channel, const Group& group) {
  bool ok = true;
  forBlocks(payloads, count, channel, group, [&](const PeerPayload& payload, std::uint32_t block) {
    const Part part = partOf(payload, channel);
    const ByteFifoEnd end = payload.end.on(channel);
    const std::uint64_t number = end.state->blocksSent + block;
    const auto* const room = wordAt(end.local, ByteFifoLayout::kRoom);
    const std::uint64_t tail = Memory::poll(room);
    group.forEach32([&](std::uint32_t t) {
      const std::uint64_t first = part.begin + (std::uint64_t{block} * ByteFifoLayout::kBlockVec16s + t) * 16;
      Vec16 vec[3];
      bool valid[3];
      SEQPAR_UNROLL
      for (int i = 0; i < 3; ++i) {
        valid[i] = first + i * 512U < part.end;
        vec[i] = Vec16{0, 0, 0, 0};
        if (valid[i]) vec[i] = gatherVec16(regions, payload, first + i * 512U);
      }
      if (number >= tail + ByteFifoLayout::kBlocks) {
        ok = ok && awaitPeer<Memory>(waitPolicy, payload.peer,
                                     [&] { return number < Memory::poll(room) + ByteFifoLayout::kBlocks; });
      }
      if (!ok) return;
      const BlockPlace place(number);
      auto* const packets = reinterpret_cast<Vec16*>(end.remote + place.offset) + t;
      SEQPAR_UNROLL
      for (int i = 0; i < 3; ++i) {
        if (valid[i]) Memory::storePacket(packets + i * 32, Vec16{vec[i].x, vec[i].y, vec[i].z, place.flag});
      }
      if (valid[0]) Memory::storePacket(packets + 96, Vec16{vec[0].w, vec[1].w, vec[2].w, place.flag});
    });
  });
  return ok;
}

/// Receives all payloads of the list that use packets. Returns false on timeout.
template <class Memory, class Group>
SEQPAR_DEVICE bool receivePackets(const WaitPolicy& waitPolicy, const RegionArg* regions, const PeerPayload* payloads,
                                  int count, int channel, const Group& group) {
  bool ok = true;
  forBlocks(payloads, count, channel, group, [&](const PeerPayload& payload, std::uint32_t block) {
    const Part part = partOf(payload, channel);
    const ByteFifoEnd end = payload.end.on(channel);
    const BlockPlace place(end.state->blocksReceived + block);
    group.forEach32([&](std::uint32_t t) {
      const std::uint64_t first = part.begin + (std::uint64_t{block} * ByteFifoLayout::kBlockVec16s + t) * 16;
      if (first >= part.end) return;
      const auto* const packets = reinterpret_cast<const Vec16*>(end.local + place.offset) + t;
      const bool second = first + 512 < part.end;
      const bool third = first + 1024 < part.end;
      Vec16 packet[4] = {};
      const auto complete = [&] {
        packet[0] = Memory::loadPacket(packets);
        if (second) packet[1] = Memory::loadPacket(packets + 32);
        if (third) packet[2] = Memory::loadPacket(packets + 64);
        packet[3] = Memory::loadPacket(packets + 96);
        return packet[0].w == place.flag && (!second || packet[1].w == place.flag) &&
               (!third || packet[2].w == place.flag) && packet[3].w == place.flag;
      };
      ok = ok && awaitPeer<Memory>(waitPolicy, payload.peer, complete);
      if (!ok) return;
      scatterVec16(regions, payload, first, Vec16{packet[0].x, packet[0].y, packet[0].z, packet[3].x});
      if (second)
        scatterVec16(regions, payload, first + 512, Vec16{packet[1].x, packet[1].y, packet[1].z, packet[3].y});
      if (third)
        scatterVec16(regions, payload, first + 1024, Vec16{packet[2].x, packet[2].y, packet[2].z, packet[3].z});
    });
  });
  return ok;
}

/// A thread's share of the payloads' bookkeeping: read early, so the end of a call does not wait for loads, and written
/// after a barrier that follows sendPackets() or receivePackets() of all threads.
template <class Group>
class PacketSends {
 public:
  SEQPAR_DEVICE PacketSends(const PeerPayload* payloads, int count, int channel, const Group& group) {
    SEQPAR_UNROLL
    for (int i = 0; i < Group::kShare; ++i) {
      const int payload = group.thread() + i * group.threads();
      before_[i] = payload < count ? payloads[payload].end.on(channel).state->blocksSent : 0;
    }
  }
  SEQPAR_DEVICE void finish(const PeerPayload* payloads, int count, int channel, const Group& group) const {
    SEQPAR_UNROLL
    for (int i = 0; i < Group::kShare; ++i) {
      const int payload = group.thread() + i * group.threads();
      if (payload >= count || payloads[payload].chunk != 0) continue;
      payloads[payload].end.on(channel).state->blocksSent = before_[i] + blocksOf(partOf(payloads[payload], channel));
    }
  }

 private:
  std::uint64_t before_[Group::kShare];
};

template <class Group>
class PacketReceives {
 public:
  SEQPAR_DEVICE PacketReceives(const PeerPayload* payloads, int count, int channel, const Group& group) {
    SEQPAR_UNROLL
    for (int i = 0; i < Group::kShare; ++i) {
      const int payload = group.thread() + i * group.threads();
      const bool mine = payload < count;
      before_[i] = mine ? payloads[payload].end.on(channel).state->blocksReceived : 0;
      credited_[i] = mine ? payloads[payload].end.on(channel).state->blocksCredited : 0;
    }
  }
  /// Credit is given per quarter of the ring.
  template <class Memory>
  SEQPAR_DEVICE void finish(const PeerPayload* payloads, int count, int channel, const Group& group) const {
    SEQPAR_UNROLL
    for (int i = 0; i < Group::kShare; ++i) {
      const int payload = group.thread() + i * group.threads();
      if (payload >= count || payloads[payload].chunk != 0) continue;
      const ByteFifoEnd end = payloads[payload].end.on(channel);
      const std::uint64_t received = before_[i] + blocksOf(partOf(payloads[payload], channel));
      end.state->blocksReceived = received;
      if (received - credited_[i] < ByteFifoLayout::kOwedBlocks) continue;
      Memory::tell(wordAt(end.remote, ByteFifoLayout::kRoom), received);
      end.state->blocksCredited = received;
    }
  }

 private:
  std::uint64_t before_[Group::kShare], credited_[Group::kShare];
};

}  // namespace seqpar::device
