// ONESHOT of plain cells without flags, a cell a thread: every position sends its map to all later ones, and each folds
// what it gets, in order. On the wire as in oneshot_lane.h.
#pragma once

#include "lane.h"
#include "scan/maps.h"
#include "scan/plain_task.h"

namespace seqpar {

template <class Memory, class Group>
class OneshotPlainLane {
 public:
  SEQPAR_LANE OneshotPlainLane(const PeerView& view, const PlainTask& task, int lane, const Group& group,
                               LanePositions& positions)
      : view_(view),
        task_(task),
        lane_(lane),
        group_(group),
        at_(positions),
        range_(task.part(lane)),
        cell_(range_.begin + static_cast<std::uint32_t>(group.thread())),
        firstFactor_(factorOf(task, range_.begin)),
        factors_(factorOf(task, range_.end - 1) - firstFactor_ + 1) {}

  /// Whether a lane of so many threads can do a lane's part.
  static bool fits(const ScanTask& task, std::uint32_t threads) {
    return task.part(0, 4).size() <= (threads < kMostOneshotRow ? threads : kMostOneshotRow);
  }

  /// False: gave up.
  SEQPAR_LANE bool run() {
    const bool has = cell_ < range_.end;
    const PlainCell mine = has ? fetched(task_, cell_) : PlainCell{};
    bool ok = true;
    SEQPAR_ROLLED
    for (int p = group_.thread(); p < task_.positions; p += group_.threads()) ok = openPort(p) && ok;
    if (group_.any(!ok)) return false;
    if (has) ok = exchange(valuesOf(mine.own), decayed(task_, mine.factor), factorOf(task_, cell_));
    if (group_.any(!ok)) return false;
    if (group_.inFirstWarp()) finish();
    return true;
  }

 private:
  static constexpr int kLooks = 4;  // lines that a thread looks at together

  /// Where the lines of a position begin.
  SEQPAR_LANE bool openPort(int p) {
    if (p == task_.position) return true;
    const int peer = task_.peerAt[p];
    const ChannelState state = task_.channel(peer, lane_);
    at_.state[p] = state;
    at_.ports[p].sent = static_cast<std::uint32_t>(state.sent);
    at_.ports[p].received = static_cast<std::uint32_t>(state.received);
    if (p < task_.position) return true;
    Sender<Memory> out(view_, peer, lane_, state.sent, state.credit);
    const bool room = out.reserve(lines(task_.position));
    at_.state[p].credit = out.credit();
    return room;
  }

  /// Lines that position `from` sends to each later one: nothing comes before position 0, which sends no factors.
  SEQPAR_LANE std::uint32_t lines(int from) const { return range_.size() + (from == 0 ? 0 : (factors_ + 3) / 4); }

  SEQPAR_LANE Line* outRing(int p) const { return task_.out[p] + static_cast<std::size_t>(lane_) * kRingLines; }
  SEQPAR_LANE Line* inRing(int p) const { return task_.inRing(task_.peerAt[p], lane_); }
  SEQPAR_LANE static std::uint32_t* wordOf(Line* ring, std::uint32_t base, std::uint32_t word) {
    return &slotOf(ring, base, word / 4)->word[word % 4];
  }

  SEQPAR_LANE bool exchange(const PlainValues& own, float factor, std::uint32_t number) const {
    const std::uint32_t word = 4 * range_.size() + number - firstFactor_;
    PlainValues x{};
    PlainValues state = own;
    if (task_.first()) {
      if (task_.initial != nullptr) x = valuesOf(readLine(task_.initial + cell_));
      if (task_.initial != nullptr) state = applied(factor, x, own);
    }
    push(state, factor, word, number * task_.span.divisor() == 4 * cell_ || group_.thread() == 0);
    if (!task_.first()) return fold(own, factor, word);
    write(true, x, state);
    return true;
  }

  /// `sends`: the factor is sent by this thread.
  SEQPAR_LANE void push(const PlainValues& state, float factor, std::uint32_t word, bool sends) const {
    const Line line = sendableLineOf(state);
    const std::uint32_t bits = sendable(asBits(factor), kAbsentAsFloat);
    sends = sends && !task_.first();
    // Who has most to fold first.
    SEQPAR_ROLLED
    for (int to = task_.positions - 1; to > task_.position; --to) {
      Line* const ring = outRing(to);
      const std::uint32_t base = at_.ports[to].sent;
      Memory::store(slotOf(ring, base, static_cast<std::uint32_t>(group_.thread())), line);
      if (sends) Memory::store(wordOf(ring, base, word), bits);
    }
  }

  /// x of this position, and the hop.
  SEQPAR_LANE bool fold(const PlainValues& own, float factor, std::uint32_t word) const {
    PlainValues x{};
    SEQPAR_ROLLED
    for (int first = 0; first < task_.position; first += kLooks) {
      if (!foldSome(first, word, own, factor, x)) return false;
    }
    return true;
  }

  // Everything is done at every look, though without effect: when the lines come, the instructions are at hand.
  SEQPAR_LANE bool foldSome(int first, std::uint32_t word, const PlainValues& own, float factor, PlainValues& x) const {
    Line* slot[kLooks];
    std::uint32_t* factorAt[kLooks];
    SEQPAR_UNROLL
    for (int i = 0; i < kLooks; ++i) {
      const int from = first + i < task_.position ? first + i : first;
      Line* const ring = inRing(from);
      slot[i] = slotOf(ring, at_.ports[from].received, static_cast<std::uint32_t>(group_.thread()));
      // The first map has no factor: any word of it will do.
      factorAt[i] = from == 0 ? slot[i]->word : wordOf(ring, at_.ports[from].received, word);
    }
    const bool end = first + kLooks >= task_.position;
    Wait<Memory> wait(view_, task_.peerAt[first]);
    SEQPAR_ROLLED
    for (;;) {
      Line line[kLooks];
      std::uint32_t bits[kLooks];
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        line[i] = Memory::load(slot[i]);
        bits[i] = Memory::load(factorAt[i]);
      }
      bool live = true;
      PlainValues y = x;
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        live = live && complete(line[i]) && bits[i] != kAbsent;
        const float c = first + i == 0 ? 0.0F : asFloat(bits[i]);
        if (first + i < task_.position) y = applied(c, y, valuesOf(line[i]));
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kLooks; ++i) {
        Memory::storeIf(live && first + i < task_.position, slot[i], Line{{kAbsent, kAbsent, kAbsent, kAbsent}});
      }
      write(live && end, y, applied(factor, y, own));
      if (live) {
        x = y;
        return true;
      }
      const auto missing = [&] {
        int from = first;
        for (int i = 0; i < kLooks; ++i) {
          if (!complete(line[i]) || bits[i] == kAbsent) from = first + i < task_.position ? first + i : first;
        }
        return static_cast<int>(task_.peerAt[from]);
      };
      if (wait.over(missing)) return false;
    }
  }

  SEQPAR_LANE void write(bool live, const PlainValues& x, const PlainValues& after) const {
    Memory::writeIf(live && task_.prefix != nullptr, task_.prefix + cell_, lineOf(x));
    Memory::writeIf(live && task_.total != nullptr, task_.total + cell_, lineOf(after));
  }

  /// After a barrier behind everything, by one warp: puts the factors' lines back, which many threads had wanted,
  /// counts, and gives credit.
  SEQPAR_LANE void finish() const {
    const auto warp = group_.warp();
    SEQPAR_ROLLED
    for (int from = 1; from < task_.position; ++from) {
      Line* const ring = inRing(from);
      SEQPAR_ROLLED
      for (std::uint32_t i = range_.size() + warp.thread(); i < lines(from); i += warp.threads()) {
        Memory::store(slotOf(ring, at_.ports[from].received, i), Line{{kAbsent, kAbsent, kAbsent, kAbsent}});
      }
    }
    group_.warpAll(true);
    SEQPAR_ROLLED
    for (int p = warp.thread(); p < task_.positions; p += warp.threads()) {
      if (p == task_.position) continue;
      ChannelState state = at_.state[p];
      if (p > task_.position) state.sent += lines(task_.position);
      if (p < task_.position) state.received += lines(p);
      if (state.received - state.given >= kCreditLines) {
        giveCredit<Memory>(view_, task_.peerAt[p], lane_, state.received);
        state.given = state.received;
      }
      task_.channel(task_.peerAt[p], lane_) = state;
    }
  }

  const PeerView& view_;
  const PlainTask& task_;
  int lane_;
  const Group& group_;
  LanePositions& at_;
  CellRange range_;
  std::uint32_t cell_;
  std::uint32_t firstFactor_, factors_;
};

}  // namespace seqpar
