// Long payloads through byte FIFOs, in chunks that are announced when they are complete. Every warp FIFO of a channel
// has one warp at either end, which waits only for its peers: while one warp waits for its stores to arrive, others
// move data.
//
// A warp processes its payloads in steps, one chunk of each payload per step. A warp that waits in step k waits for an
// action that another warp takes in step k or earlier, so no order of payloads can deadlock.
#pragma once

#include "kernels/exchange/regions.h"

namespace seqpar::device {

/// The chunks of one warp FIFO of one channel of a payload: the chunk of step k starts at first + k * stride.
struct WarpFifo {
  std::uint64_t first, end, stride;
  std::uint32_t chunk;

  SEQPAR_DEVICE WarpFifo(const PeerPayload& payload, int channel, int warpFifo) {
    const Part part = partOf(payload, channel);
    chunk = payload.chunk;
    first = part.begin + static_cast<std::uint64_t>(warpFifo) * chunk;
    end = chunk == 0 ? 0 : part.end;
    stride = std::uint64_t{ByteFifoLayout::kWarpFifos} * chunk;
  }
  SEQPAR_DEVICE bool has(std::uint32_t step) const { return first + step * stride < end; }
  SEQPAR_DEVICE Part at(std::uint32_t step) const {
    const std::uint64_t begin = first + step * stride;
    return {begin, lesser(end, begin + chunk)};
  }
};

/// Shared by the threads of a warp, by payload: chunk counters at the start of this call and the current counters. One
/// thread updates a payload's counters.
struct ChunkCounts {
  std::uint64_t before[kMostPeers], after[kMostPeers];
  std::uint64_t tail[kMostPeers];  ///< of the sent chunks, as far as known; updated like `after`
};

SEQPAR_DEVICE std::size_t packetAt(int warpFifo, std::uint64_t chunk) {
  return ByteFifoLayout::kChunks + static_cast<std::size_t>(warpFifo) * ByteFifoLayout::kWarpFifoBytes +
         chunk % ByteFifoLayout::kSlots * ByteFifoLayout::kChunk;
}

SEQPAR_DEVICE std::size_t wordOf(std::size_t words, int warpFifo) {
  return words + static_cast<std::size_t>(warpFifo) * ByteFifoLayout::kWord;
}

/// Returns whether any payload has a chunk in this step.
SEQPAR_DEVICE bool anyHas(const PeerPayload* payloads, int count, int channel, int warpFifo, std::uint32_t step) {
  bool any = false;
  SEQPAR_ROLLED
  for (int i = 0; i < count; ++i) any = any || WarpFifo(payloads[i], channel, warpFifo).has(step);
  return any;
}

/// Sends this warp FIFO's share of all chunked payloads of the list. Returns false on timeout.
template <class Memory, class Warp>
SEQPAR_DEVICE bool sendChunks(const WaitPolicy& waitPolicy, const RegionArg* regions, const PeerPayload* payloads,
                              int count, int channel, int warpFifo, ChunkCounts& counts) {
  if (!anyHas(payloads, count, channel, warpFifo, 0)) return true;
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    const ByteFifoEnd end = payloads[i].end.on(channel);
    counts.before[i] = counts.after[i] = end.state->chunksSent[warpFifo];
    counts.tail[i] = Memory::poll(wordAt(end.local, wordOf(ByteFifoLayout::kTail, warpFifo)));
  }
  Warp::sync();
  SEQPAR_ROLLED
  for (std::uint32_t step = 0; anyHas(payloads, count, channel, warpFifo, step); ++step) {
    bool ok = true;
    for (int i = Warp::thread(); i < count; i += Warp::threads()) {
      if (!WarpFifo(payloads[i], channel, warpFifo).has(step)) continue;
      const auto* const tail = wordAt(payloads[i].end.on(channel).local, wordOf(ByteFifoLayout::kTail, warpFifo));
      const std::uint64_t number = counts.after[i];
      if (number < counts.tail[i] + ByteFifoLayout::kSlots) continue;
      ok = ok && awaitPeer<Memory>(waitPolicy, payloads[i].peer, [&] {
             counts.tail[i] = Memory::poll(tail);
             return number < counts.tail[i] + ByteFifoLayout::kSlots;
           });
    }
    if (Warp::any(!ok)) return false;
    Warp::sync();
    SEQPAR_ROLLED
    for (int i = 0; i < count; ++i) {
      const WarpFifo mine(payloads[i], channel, warpFifo);
      if (!mine.has(step)) continue;
      copyPayload<true>(regions, payloads[i], mine.at(step),
                        payloads[i].end.on(channel).remote + packetAt(warpFifo, counts.before[i] + step),
                        Warp::thread(), Warp::threads());
    }
    Warp::sync();
    for (int i = Warp::thread(); i < count; i += Warp::threads()) {
      if (!WarpFifo(payloads[i], channel, warpFifo).has(step)) continue;
      Memory::release(wordAt(payloads[i].end.on(channel).remote, wordOf(ByteFifoLayout::kArrived, warpFifo)),
                      ++counts.after[i]);
    }
  }
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    payloads[i].end.on(channel).state->chunksSent[warpFifo] = counts.after[i];
  }
  return true;
}

/// Waits for a chunk; called by all threads of the warp. Each thread acquires, since each must see the announced data;
/// the polling itself is relaxed, which is cheaper. Returns false on timeout.
template <class Memory>
SEQPAR_DEVICE bool awaitChunk(const WaitPolicy& waitPolicy, const PeerPayload& payload, int channel, int warpFifo,
                              std::uint64_t number) {
  const auto* const arrived = wordAt(payload.end.on(channel).local, wordOf(ByteFifoLayout::kArrived, warpFifo));
  const auto complete = [&] { return Memory::acquire(arrived) > number; };
  return complete() ||
         (awaitPeer<Memory>(waitPolicy, payload.peer, [&] { return Memory::poll(arrived) > number; }) && complete());
}

/// Receives this warp FIFO's share of all chunked payloads of the list. Returns false on timeout.
template <class Memory, class Warp>
SEQPAR_DEVICE bool receiveChunks(const WaitPolicy& waitPolicy, const RegionArg* regions, const PeerPayload* payloads,
                                 int count, int channel, int warpFifo, ChunkCounts& counts) {
  if (!anyHas(payloads, count, channel, warpFifo, 0)) return true;
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    counts.before[i] = counts.after[i] = payloads[i].end.on(channel).state->chunksReceived[warpFifo];
  }
  Warp::sync();
  SEQPAR_ROLLED
  for (std::uint32_t step = 0; anyHas(payloads, count, channel, warpFifo, step); ++step) {
    SEQPAR_ROLLED
    for (int i = 0; i < count; ++i) {
      const WarpFifo mine(payloads[i], channel, warpFifo);
      if (!mine.has(step)) continue;
      const ByteFifoEnd end = payloads[i].end.on(channel);
      const std::uint64_t number = counts.before[i] + step;
      if (Warp::any(!awaitChunk<Memory>(waitPolicy, payloads[i], channel, warpFifo, number))) return false;
      std::byte* const slot = end.local + packetAt(warpFifo, number);
      copyPayload<false>(regions, payloads[i], mine.at(step), slot, Warp::thread(), Warp::threads());
      Warp::sync();
      if (i % Warp::threads() != Warp::thread()) continue;
      Memory::tell(wordAt(end.remote, wordOf(ByteFifoLayout::kTail, warpFifo)), number + 1);
      counts.after[i] = number + 1;
    }
  }
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    payloads[i].end.on(channel).state->chunksReceived[warpFifo] = counts.after[i];
  }
  return true;
}

/// Receives payloads, at least one, that have the same length and all use chunks: all threads of the warp call
/// take(part, slots), which gets one chunk of each payload at a time. `slots`, shared by the warp, has room for one
/// address per payload. Returns false on timeout.
template <class Memory, class Warp, class Take>
SEQPAR_DEVICE bool takeChunks(const WaitPolicy& waitPolicy, const PeerPayload* payloads, int count, int channel,
                              int warpFifo, ChunkCounts& counts, const std::byte** slots, const Take& take) {
  const WarpFifo mine(payloads[0], channel, warpFifo);
  if (!mine.has(0)) return true;
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    counts.after[i] = payloads[i].end.on(channel).state->chunksReceived[warpFifo];
  }
  Warp::sync();
  SEQPAR_ROLLED
  for (std::uint32_t step = 0; mine.has(step); ++step) {
    bool ok = true;
    SEQPAR_ROLLED
    for (int i = 0; i < count; ++i) {
      ok = ok && awaitChunk<Memory>(waitPolicy, payloads[i], channel, warpFifo, counts.after[i]);
    }
    if (Warp::any(!ok)) return false;
    for (int i = Warp::thread(); i < count; i += Warp::threads()) {
      slots[i] = payloads[i].end.on(channel).local + packetAt(warpFifo, counts.after[i]);
    }
    Warp::sync();
    take(mine.at(step), slots);
    Warp::sync();
    for (int i = Warp::thread(); i < count; i += Warp::threads()) {
      Memory::tell(wordAt(payloads[i].end.on(channel).remote, wordOf(ByteFifoLayout::kTail, warpFifo)),
                   ++counts.after[i]);
    }
    Warp::sync();
  }
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    payloads[i].end.on(channel).state->chunksReceived[warpFifo] = counts.after[i];
  }
  return true;
}

}  // namespace seqpar::device
