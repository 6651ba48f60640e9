// Long strings through pipes: in chunks that are announced when they are complete. Every track of a lane has a warp at
// either end, which waits for nobody but its peers: while one waits for its stores to arrive, others move data.
//
// A warp goes through its strings in steps, one chunk of each a step. Whoever waits in step k waits for something that
// an earlier step, or this one, of another warp does, so no order of strings can lock.
#pragma once

#include "exchange/pieces.h"

namespace seqpar::device {

/// The chunks of one track of one lane of a string: step k's begins at first + k * stride.
struct Track {
  std::uint64_t first, end, stride;
  std::uint32_t chunk;

  SEQPAR_LANE Track(const StringArg& string, int lane, int track) {
    const Part part = partOf(string, lane);
    chunk = string.chunk;
    first = part.begin + static_cast<std::uint64_t>(track) * chunk;
    end = chunk == 0 ? 0 : part.end;
    stride = std::uint64_t{PipeLayout::kTracks} * chunk;
  }
  SEQPAR_LANE bool has(std::uint32_t step) const { return first + step * stride < end; }
  SEQPAR_LANE Part at(std::uint32_t step) const {
    const std::uint64_t begin = first + step * stride;
    return {begin, lesser(end, begin + chunk)};
  }
};

/// What the threads of a warp share, by string: chunks before this call, and those with what is done of it, which is
/// one thread's business.
struct ChunkCounts {
  std::uint64_t before[kMostPeers], after[kMostPeers];
  std::uint64_t taken[kMostPeers];  ///< of what is sent, as far as known; as `after`
};

SEQPAR_LANE std::size_t slotOf(int track, std::uint64_t chunk) {
  return PipeLayout::kChunks + static_cast<std::size_t>(track) * PipeLayout::kTrackBytes +
         chunk % PipeLayout::kSlots * PipeLayout::kChunk;
}

SEQPAR_LANE std::size_t wordOf(std::size_t words, int track) {
  return words + static_cast<std::size_t>(track) * PipeLayout::kWord;
}

/// Whether any string has a chunk in this step.
SEQPAR_LANE bool anyHas(const StringArg* strings, int count, int lane, int track, std::uint32_t step) {
  bool any = false;
  SEQPAR_ROLLED
  for (int i = 0; i < count; ++i) any = any || Track(strings[i], lane, track).has(step);
  return any;
}

/// Sends what a track of a lane has of all strings of the list that go in chunks. False: gave up.
template <class Memory, class Warp>
SEQPAR_LANE bool sendChunks(const Patience& patience, const PieceArg* pieces, const StringArg* strings, int count,
                            int lane, int track, ChunkCounts& counts) {
  if (!anyHas(strings, count, lane, track, 0)) return true;
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    const PipeEnd end = strings[i].end.on(lane);
    counts.before[i] = counts.after[i] = end.state->chunksSent[track];
    counts.taken[i] = Memory::look(wordAt(end.here, wordOf(PipeLayout::kTaken, track)));
  }
  Warp::sync();
  SEQPAR_ROLLED
  for (std::uint32_t step = 0; anyHas(strings, count, lane, track, step); ++step) {
    bool ok = true;
    for (int i = Warp::thread(); i < count; i += Warp::threads()) {
      if (!Track(strings[i], lane, track).has(step)) continue;
      const auto* const taken = wordAt(strings[i].end.on(lane).here, wordOf(PipeLayout::kTaken, track));
      const std::uint64_t number = counts.after[i];
      if (number < counts.taken[i] + PipeLayout::kSlots) continue;
      ok = ok && awaitPeer<Memory>(patience, strings[i].peer, [&] {
             counts.taken[i] = Memory::look(taken);
             return number < counts.taken[i] + PipeLayout::kSlots;
           });
    }
    if (Warp::any(!ok)) return false;
    Warp::sync();
    SEQPAR_ROLLED
    for (int i = 0; i < count; ++i) {
      const Track mine(strings[i], lane, track);
      if (!mine.has(step)) continue;
      copyString<true>(pieces, strings[i], mine.at(step),
                       strings[i].end.on(lane).there + slotOf(track, counts.before[i] + step), Warp::thread(),
                       Warp::threads());
    }
    Warp::sync();
    for (int i = Warp::thread(); i < count; i += Warp::threads()) {
      if (!Track(strings[i], lane, track).has(step)) continue;
      Memory::release(wordAt(strings[i].end.on(lane).there, wordOf(PipeLayout::kArrived, track)), ++counts.after[i]);
    }
  }
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    strings[i].end.on(lane).state->chunksSent[track] = counts.after[i];
  }
  return true;
}

/// Waits for a chunk, by all threads of the warp: each acquires, since each must see what was announced, and waiting is
/// cheaper without. False: gave up.
template <class Memory>
SEQPAR_LANE bool awaitChunk(const Patience& patience, const StringArg& string, int lane, int track,
                            std::uint64_t number) {
  const auto* const arrived = wordAt(string.end.on(lane).here, wordOf(PipeLayout::kArrived, track));
  const auto there = [&] { return Memory::acquire(arrived) > number; };
  return there() ||
         (awaitPeer<Memory>(patience, string.peer, [&] { return Memory::look(arrived) > number; }) && there());
}

/// Receives what a track of a lane has of all strings of the list that come in chunks. False: gave up.
template <class Memory, class Warp>
SEQPAR_LANE bool receiveChunks(const Patience& patience, const PieceArg* pieces, const StringArg* strings, int count,
                               int lane, int track, ChunkCounts& counts) {
  if (!anyHas(strings, count, lane, track, 0)) return true;
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    counts.before[i] = counts.after[i] = strings[i].end.on(lane).state->chunksReceived[track];
  }
  Warp::sync();
  SEQPAR_ROLLED
  for (std::uint32_t step = 0; anyHas(strings, count, lane, track, step); ++step) {
    SEQPAR_ROLLED
    for (int i = 0; i < count; ++i) {
      const Track mine(strings[i], lane, track);
      if (!mine.has(step)) continue;
      const PipeEnd end = strings[i].end.on(lane);
      const std::uint64_t number = counts.before[i] + step;
      if (Warp::any(!awaitChunk<Memory>(patience, strings[i], lane, track, number))) return false;
      std::byte* const slot = end.here + slotOf(track, number);
      copyString<false>(pieces, strings[i], mine.at(step), slot, Warp::thread(), Warp::threads());
      Warp::sync();
      if (i % Warp::threads() != Warp::thread()) continue;
      Memory::tell(wordAt(end.there, wordOf(PipeLayout::kTaken, track)), number + 1);
      counts.after[i] = number + 1;
    }
  }
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    strings[i].end.on(lane).state->chunksReceived[track] = counts.after[i];
  }
  return true;
}

/// The same for strings, one at least, that are as long as each other and all come in chunks: take(part, slots) sees a
/// chunk of each at once, by all threads of the warp; `slots`, theirs to share, has room for an address a string.
/// False: gave up.
template <class Memory, class Warp, class Take>
SEQPAR_LANE bool takeChunks(const Patience& patience, const StringArg* strings, int count, int lane, int track,
                            ChunkCounts& counts, const std::byte** slots, const Take& take) {
  const Track mine(strings[0], lane, track);
  if (!mine.has(0)) return true;
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    counts.after[i] = strings[i].end.on(lane).state->chunksReceived[track];
  }
  Warp::sync();
  SEQPAR_ROLLED
  for (std::uint32_t step = 0; mine.has(step); ++step) {
    bool ok = true;
    SEQPAR_ROLLED
    for (int i = 0; i < count; ++i) {
      ok = ok && awaitChunk<Memory>(patience, strings[i], lane, track, counts.after[i]);
    }
    if (Warp::any(!ok)) return false;
    for (int i = Warp::thread(); i < count; i += Warp::threads()) {
      slots[i] = strings[i].end.on(lane).here + slotOf(track, counts.after[i]);
    }
    Warp::sync();
    take(mine.at(step), slots);
    Warp::sync();
    for (int i = Warp::thread(); i < count; i += Warp::threads()) {
      Memory::tell(wordAt(strings[i].end.on(lane).there, wordOf(PipeLayout::kTaken, track)), ++counts.after[i]);
    }
    Warp::sync();
  }
  for (int i = Warp::thread(); i < count; i += Warp::threads()) {
    strings[i].end.on(lane).state->chunksReceived[track] = counts.after[i];
  }
  return true;
}

}  // namespace seqpar::device
