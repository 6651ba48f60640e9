// CHAIN for MATRIX heads of the usual sizes and plain panels: the halves of a lane's panels go to teams of threads by
// turns, so that a team multiplies while another waits for memory, or for the rank before. Lines are those of
// matrix_chain.h, in the same order: a panel's left half comes before its right one.
#pragma once

#include "scan/matrix_product.h"

namespace seqpar {

/// The lane of heads with `Rows` rows. Team is, besides the Group of its threads:
///   static constexpr int kTeams, kThreads: teams of a lane, threads of a team;
///   int number(): of this thread's team;
///   bool anyOfLane(bool): a barrier of all threads.
template <int Rows, class Memory, class Team, class Product>
class MatrixTeams {
 public:
  static constexpr int kSlots = slotsOf(Rows);
  static constexpr std::uint32_t kLines = kSlots;  ///< of half a panel

  /// Shared memory of a lane: a team fills one half panel while slow warps still read the other.
  struct Shared {
    SplitPair pairs[Team::kTeams][2][pairsOf(Rows) / 2];
  };

  /// `reverse`: as in `scan`, for the compiler to know.
  SEQPAR_LANE MatrixTeams(const PeerView& view, const MatrixScan& scan, int lane, const Team& team, Shared& shared,
                          bool reverse)
      : view_(view),
        scan_(scan),
        lane_(lane),
        team_(team),
        shared_(shared),
        reverse_(reverse),
        before_(scan.first() ? view.self : scan.order[scan.position - 1]),
        after_(scan.last() ? view.self : scan.order[scan.position + 1]) {}

  SEQPAR_LANE void run(GroupRange range) {
    if (range.begin == range.end) return;
    lines_ = 2 * static_cast<std::uint32_t>(range.end - range.begin) * kLines;
    const bool fine = static_cast<std::uint32_t>(team_.number()) * kLines >= lines_ || work(2 * range.begin);
    if (!fine || team_.anyOfLane(late_) || team_.number() != 0 || team_.thread() != 0) return;
    if (!scan_.first()) {
      ChannelState& state = *channelState(view_, before_, lane_);
      state.received = begun(state).received + lines_;
      if (lines_ >= kCredited * kLines) state.given = state.received - lines_ % (kCredited * kLines);
      if (state.received - state.given >= kCreditLines) {
        state.given = state.received;
        giveCredit<Memory>(view_, before_, lane_, state.received);
      }
    }
    if (scan_.last()) return;
    ChannelState& state = *channelState(view_, after_, lane_);
    state.sent = begun(state).sent + lines_;
  }

 private:
  /// Half a ring of halves of panels. When all teams have taken that many, they meet, lest one finds in the ring what
  /// another has not read, and credit is given.
  static constexpr std::uint32_t kCredited = kRingLines / 2 / kLines / Team::kTeams * Team::kTeams;
  static_assert(kCredited > 0);
  static constexpr int kEach = kSlots / Team::kThreads;  ///< slots of a thread
  static_assert(kEach * Team::kThreads == kSlots);

  using Numbers = float[kEach][4];

  /// Half a panel: 8 columns of a head.
  struct Half {
    int head, column;

    SEQPAR_LANE Half(int number, int ofHead)
        : head(static_cast<int>(static_cast<unsigned>(number) / static_cast<unsigned>(ofHead))),
          column(number - head * ofHead) {}
    SEQPAR_LANE void advance(int halves, int ofHead) {
      for (column += halves; column >= ofHead; column -= ofHead) ++head;
    }
  };

  /// The half goes through the head's matrix.
  SEQPAR_LANE bool passes(int head) const {
    return (scan_.total != nullptr || !scan_.last()) && !scan_.forgets(head) &&
           !(scan_.first() && scan_.initial == nullptr);
  }
  SEQPAR_LANE MatrixView matrixOf(int head) const {
    const float* const data = scan_.transition + static_cast<std::size_t>(head) * (Rows * Rows);
    return reverse_ ? MatrixView{data, 1, Rows, Rows} : MatrixView{data, Rows, 1, Rows};
  }
  SEQPAR_LANE int slotOf(int i) const { return team_.thread() + i * Team::kThreads; }
  /// Of the first number of a slot, in a caller's buffer.
  SEQPAR_LANE std::size_t elementOf(const Half& half, int slotNumber) const {
    const PanelSlot slot(slotNumber);
    const auto row = static_cast<std::uint32_t>(half.head * Rows + slot.row);
    return static_cast<std::uint64_t>(row) * static_cast<std::uint32_t>(scan_.dv) +
           static_cast<std::uint32_t>(half.column * 8 + slot.column);
  }

  SEQPAR_LANE void load(const void* data, const Half& half, Numbers& numbers) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const float* const from = static_cast<const float*>(data) + elementOf(half, slotOf(i));
      const TwoFloats upper = *reinterpret_cast<const TwoFloats*>(from);
      const TwoFloats lower = *reinterpret_cast<const TwoFloats*>(from + scan_.dv);
      numbers[i][0] = upper.left;
      numbers[i][1] = upper.right;
      numbers[i][2] = lower.left;
      numbers[i][3] = lower.right;
    }
  }
  SEQPAR_LANE void store(void* data, const Half& half, const Numbers& numbers) const {
    if (data == nullptr) return;
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      float* const to = static_cast<float*>(data) + elementOf(half, slotOf(i));
      *reinterpret_cast<TwoFloats*>(to) = {numbers[i][0], numbers[i][1]};
      *reinterpret_cast<TwoFloats*>(to + scan_.dv) = {numbers[i][2], numbers[i][3]};
    }
  }

  /// What does not depend on the rank before is asked for before anything is waited for. False: another team gave up.
  SEQPAR_LANE bool work(int begin) {
    const int ofHead = scan_.dv / 8;
    Half half(begin + team_.number(), ofHead);
    const std::uint64_t received = begun(*channelState(view_, before_, lane_)).received;
    const std::uint64_t sent = begun(*channelState(view_, after_, lane_)).sent;
    bool through = passes(half.head), settled = false;
    Numbers s, coming;
    load(scan_.state, half, s);
    if (scan_.first()) bring(half, coming);
    if (through) product_.load(matrixOf(half.head));
    int loaded = through ? half.head : -1;
    Sender<Memory> out(view_, after_, lane_, sent, Memory::acquire(Sender<Memory>::creditWord(view_, after_, lane_)));
    const Receiver<Memory> in(view_, before_, lane_, received);
    const auto number = static_cast<std::uint32_t>(team_.number());
    if (!scan_.first()) look(in, number * kLines, coming);

    std::uint32_t taken = 0, turn = 0;
    for (std::uint32_t base = number * kLines;;) {
      late_ = late_ || (!scan_.last() && !out.reserve(base + kLines));
      if (!through) emit(half, out, base, s);  // what comes in is not part of what goes out

      Numbers x;
      arrive(half, in, base, coming, x);
      bool odd = late_;
      SplitPair* const pairs = shared_.pairs[team_.number()][turn];
      if (through) {
        SEQPAR_UNROLL
        for (int i = 0; i < kEach; ++i) odd |= splitSlot(pairs, PanelSlot(slotOf(i)), x[i]);
        if (!settled) product_.settle();
        settled = true;
        turn ^= 1;
      }
      if (through || !scan_.first()) {
        odd = team_.any(odd);
        if (odd && team_.any(late_)) return true;
      }
      taken += Team::kTeams;
      const bool credits = !scan_.first() && taken % kCredited == 0 && taken * kLines <= lines_;
      if (credits && team_.anyOfLane(false)) return false;

      const Half now = half;
      const std::uint32_t at = base;
      half.advance(Team::kTeams, ofHead);
      base += Team::kTeams * kLines;
      const bool more = base < lines_;
      if (more) scan_.first() ? bring(half, coming) : look(in, base, coming);
      if (through) {
        SEQPAR_UNROLL
        for (int i = 0; i < kEach; ++i) {
          float product[4];
          product_.multiply(slotOf(i), pairs, odd, product);
          SEQPAR_UNROLL
          for (int n = 0; n < 4; ++n) s[i][n] += product[n];
        }
        emit(now, out, at, s);
      }
      store(scan_.prefix, now, x);
      // Late, since giving credit holds up the thread that does it.
      if (credits && team_.number() == 0 && team_.thread() == 0) {
        giveCredit<Memory>(view_, before_, lane_, received + taken * kLines);
      }
      if (!more) return true;
      load(scan_.state, half, s);
      if (half.head == now.head) continue;
      through = passes(half.head);
      if (through && half.head != loaded) {
        product_.load(matrixOf(half.head));
        loaded = half.head;
        settled = false;
      }
    }
  }

  /// x_0 of a half to come, on the first rank.
  SEQPAR_LANE void bring(const Half& half, Numbers& coming) const {
    if (scan_.initial == nullptr) {
      clear(coming);
    } else {
      load(scan_.initial, half, coming);
    }
  }
  /// Lines of a half to come, which may not have arrived yet.
  SEQPAR_LANE void look(const Receiver<Memory>& in, std::uint32_t base, Numbers& coming) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const Line line = in.look(base + static_cast<std::uint32_t>(slotOf(i)));
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) coming[i][n] = asFloat(line.word[n]);
    }
  }

  /// x of a half: what a head that begins a sequence has is zeros.
  SEQPAR_LANE void arrive(const Half& half, const Receiver<Memory>& in, std::uint32_t base, const Numbers& coming,
                          Numbers& x) {
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      Line line;
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) line.word[n] = asBits(coming[i][n]);
      if (!scan_.first()) late_ = late_ || !in.take(base + static_cast<std::uint32_t>(slotOf(i)), line);
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) x[i][n] = asFloat(line.word[n]);
    }
    if (late_ || scan_.resets[half.head]) clear(x);
  }
  SEQPAR_LANE static void clear(Numbers& numbers) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4 * kEach; ++i) numbers[i / 4][i % 4] = 0;
  }

  /// What a half has become, for the rank after and for the caller.
  SEQPAR_LANE void emit(const Half& half, const Sender<Memory>& out, std::uint32_t base, const Numbers& numbers) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (scan_.last() || late_) break;
      Line line;
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) line.word[n] = sendable(asBits(numbers[i][n]), kAbsentAsFloat);
      out.put(base + static_cast<std::uint32_t>(slotOf(i)), line);
    }
    store(scan_.total, half, numbers);
  }

  const PeerView& view_;
  const MatrixScan& scan_;
  int lane_;
  const Team& team_;
  Shared& shared_;
  bool reverse_;
  int before_, after_;
  Product product_;
  std::uint32_t lines_ = 0;  ///< of the call
  /// Lines of this call for which there is credit; less than 0: some of calls before are owed.
  std::int32_t given_ = 0;
  bool late_ = false;
};

}  // namespace seqpar
