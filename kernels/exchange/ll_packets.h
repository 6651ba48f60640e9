// Short strings through pipes: in lines of 12 bytes and the number of the ring's lap, so that arrival is in the data
// and a string takes one store, whatever bits it has. A block of lines is a warp's work at either end.
#pragma once

#include "exchange/pieces.h"

namespace seqpar::device {

SEQPAR_LANE std::uint32_t blocksOf(const Part& part) {
  return (static_cast<std::uint32_t>(part.end - part.begin) + PipeLayout::kBlockBytes - 1) / PipeLayout::kBlockBytes;
}

/// Where block number `block` of a pipe lies in a ring, and the mark of its lines, which no earlier lap has: rings are
/// zeros at first.
struct BlockPlace {
  std::size_t offset;
  std::uint32_t mark;

  SEQPAR_LANE explicit BlockPlace(std::uint64_t block)
      : offset(PipeLayout::kLines + block % PipeLayout::kBlocks * (PipeLayout::kBlockLines * 16)),
        mark(static_cast<std::uint32_t>(block / PipeLayout::kBlocks + 1)) {}
};

/// Calls work(string, block) for the blocks of all strings that are this warp's.
template <class Group, class Work>
SEQPAR_LANE void forBlocks(const StringArg* strings, int count, int lane, const Group& group, const Work& work) {
  auto item = static_cast<std::uint32_t>(group.warp());
  SEQPAR_ROLLED
  for (int i = 0; i < count; ++i) {
    if (strings[i].chunk != 0) continue;
    const std::uint32_t blocks = blocksOf(partOf(strings[i], lane));
    SEQPAR_ROLLED
    for (; item < blocks; item += static_cast<std::uint32_t>(group.warps())) work(strings[i], item);
    item -= blocks;
  }
}

/// Sends all strings of the list that go in lines. False: gave up.
template <class Memory, class Group>
SEQPAR_LANE bool sendLines(const Patience& patience, const PieceArg* pieces, const StringArg* strings, int count,
                           int lane, const Group& group) {
  bool ok = true;
  forBlocks(strings, count, lane, group, [&](const StringArg& string, std::uint32_t block) {
    const Part part = partOf(string, lane);
    const PipeEnd end = string.end.on(lane);
    const std::uint64_t number = end.state->blocksSent + block;
    const auto* const room = wordAt(end.here, PipeLayout::kRoom);
    const std::uint64_t taken = Memory::look(room);
    group.forEach32([&](std::uint32_t t) {
      const std::uint64_t first = part.begin + (std::uint64_t{block} * PipeLayout::kBlockUnits + t) * 16;
      Unit unit[3];
      bool there[3];
      SEQPAR_UNROLL
      for (int i = 0; i < 3; ++i) {
        there[i] = first + i * 512U < part.end;
        unit[i] = Unit{0, 0, 0, 0};
        if (there[i]) unit[i] = gatherUnit(pieces, string, first + i * 512U);
      }
      if (number >= taken + PipeLayout::kBlocks) {
        ok = ok && awaitPeer<Memory>(patience, string.peer,
                                     [&] { return number < Memory::look(room) + PipeLayout::kBlocks; });
      }
      if (!ok) return;
      const BlockPlace place(number);
      auto* const lines = reinterpret_cast<Unit*>(end.there + place.offset) + t;
      SEQPAR_UNROLL
      for (int i = 0; i < 3; ++i) {
        if (there[i]) Memory::storeLine(lines + i * 32, Unit{unit[i].x, unit[i].y, unit[i].z, place.mark});
      }
      if (there[0]) Memory::storeLine(lines + 96, Unit{unit[0].w, unit[1].w, unit[2].w, place.mark});
    });
  });
  return ok;
}

/// Receives all strings of the list that come in lines. False: gave up.
template <class Memory, class Group>
SEQPAR_LANE bool receiveLines(const Patience& patience, const PieceArg* pieces, const StringArg* strings, int count,
                              int lane, const Group& group) {
  bool ok = true;
  forBlocks(strings, count, lane, group, [&](const StringArg& string, std::uint32_t block) {
    const Part part = partOf(string, lane);
    const PipeEnd end = string.end.on(lane);
    const BlockPlace place(end.state->blocksReceived + block);
    group.forEach32([&](std::uint32_t t) {
      const std::uint64_t first = part.begin + (std::uint64_t{block} * PipeLayout::kBlockUnits + t) * 16;
      if (first >= part.end) return;
      const auto* const lines = reinterpret_cast<const Unit*>(end.here + place.offset) + t;
      const bool second = first + 512 < part.end;
      const bool third = first + 1024 < part.end;
      Unit line[4] = {};
      const auto complete = [&] {
        line[0] = Memory::loadLine(lines);
        if (second) line[1] = Memory::loadLine(lines + 32);
        if (third) line[2] = Memory::loadLine(lines + 64);
        line[3] = Memory::loadLine(lines + 96);
        return line[0].w == place.mark && (!second || line[1].w == place.mark) && (!third || line[2].w == place.mark) &&
               line[3].w == place.mark;
      };
      ok = ok && awaitPeer<Memory>(patience, string.peer, complete);
      if (!ok) return;
      scatterUnit(pieces, string, first, Unit{line[0].x, line[0].y, line[0].z, line[3].x});
      if (second) scatterUnit(pieces, string, first + 512, Unit{line[1].x, line[1].y, line[1].z, line[3].y});
      if (third) scatterUnit(pieces, string, first + 1024, Unit{line[2].x, line[2].y, line[2].z, line[3].z});
    });
  });
  return ok;
}

/// A thread's share of the strings' bookkeeping: read ahead, so that a call's end waits for nothing, and written after
/// a barrier behind sendLines() or receiveLines() of all threads.
template <class Group>
class LineSends {
 public:
  SEQPAR_LANE LineSends(const StringArg* strings, int count, int lane, const Group& group) {
    SEQPAR_UNROLL
    for (int i = 0; i < Group::kShare; ++i) {
      const int string = group.thread() + i * group.threads();
      before_[i] = string < count ? strings[string].end.on(lane).state->blocksSent : 0;
    }
  }
  SEQPAR_LANE void finish(const StringArg* strings, int count, int lane, const Group& group) const {
    SEQPAR_UNROLL
    for (int i = 0; i < Group::kShare; ++i) {
      const int string = group.thread() + i * group.threads();
      if (string >= count || strings[string].chunk != 0) continue;
      strings[string].end.on(lane).state->blocksSent = before_[i] + blocksOf(partOf(strings[string], lane));
    }
  }

 private:
  std::uint64_t before_[Group::kShare];
};

template <class Group>
class LineReceives {
 public:
  SEQPAR_LANE LineReceives(const StringArg* strings, int count, int lane, const Group& group) {
    SEQPAR_UNROLL
    for (int i = 0; i < Group::kShare; ++i) {
      const int string = group.thread() + i * group.threads();
      const bool mine = string < count;
      before_[i] = mine ? strings[string].end.on(lane).state->blocksReceived : 0;
      given_[i] = mine ? strings[string].end.on(lane).state->blocksGiven : 0;
    }
  }
  /// Room is given back by the quarter ring.
  template <class Memory>
  SEQPAR_LANE void finish(const StringArg* strings, int count, int lane, const Group& group) const {
    SEQPAR_UNROLL
    for (int i = 0; i < Group::kShare; ++i) {
      const int string = group.thread() + i * group.threads();
      if (string >= count || strings[string].chunk != 0) continue;
      const PipeEnd end = strings[string].end.on(lane);
      const std::uint64_t received = before_[i] + blocksOf(partOf(strings[string], lane));
      end.state->blocksReceived = received;
      if (received - given_[i] < PipeLayout::kOwedBlocks) continue;
      Memory::tell(wordAt(end.there, PipeLayout::kRoom), received);
      end.state->blocksGiven = received;
    }
  }

 private:
  std::uint64_t before_[Group::kShare], given_[Group::kShare];
};

}  // namespace seqpar::device
