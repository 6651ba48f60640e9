// CHAIN for MATRIX heads of the usual sizes and fast panels: teams of threads take the halves of a channel's panels in
// turn, so one team multiplies while another waits for memory or for the previous rank. Packets and their order are as
// in matrix_chain.h: a panel's left half precedes its right half.
#pragma once

#include "kernels/scan/matrix_product.h"

namespace seqpar {

/// The channel of heads with `Rows` rows. In addition to the Group of its threads, Team provides:
///   static constexpr int kTeams, kThreads: teams of a channel, threads of a team;
///   int number(): index of this thread's team;
///   bool anyOfChannel(bool): a barrier of all threads.
template <int Rows, class Memory, class Team, class Product>
class MatrixTeams {
 public:
  static constexpr int kFragments = fragmentsOf(Rows);
  static constexpr std::uint32_t kPackets = kFragments;  ///< of half a panel

  /// Shared memory of a channel: a team fills one half panel while slow warps still read the other.
  struct Shared {
    SplitPair pairs[Team::kTeams][2][pairsOf(Rows) / 2];
  };

  /// `reverse`: equals scan.reverse, as a value that the compiler knows.
  SEQPAR_DEVICE MatrixTeams(const PeerView& view, const MatrixScan& scan, int channel, const Team& team, Shared& shared,
                            bool reverse)
      : view_(view),
        scan_(scan),
        channel_(channel),
        team_(team),
        shared_(shared),
        reverse_(reverse),
        before_(scan.first() ? view.self : scan.order[scan.position - 1]),
        after_(scan.last() ? view.self : scan.order[scan.position + 1]) {}

  SEQPAR_DEVICE void run(GroupRange range) {
    if (range.begin == range.end) return;
    packets_ = 2 * static_cast<std::uint32_t>(range.end - range.begin) * kPackets;
    const bool fine = static_cast<std::uint32_t>(team_.number()) * kPackets >= packets_ || work(2 * range.begin);
    if (!fine || team_.anyOfChannel(late_) || team_.number() != 0 || team_.thread() != 0) return;
    if (!scan_.first()) {
      FifoState& state = *fifoState(view_, before_, channel_);
      state.received = alignedToCall(state).received + packets_;
      if (packets_ >= kCredited * kPackets) state.credited = state.received - packets_ % (kCredited * kPackets);
      countReceived<Memory>(view_, before_, channel_, state, 0);
    }
    if (scan_.last()) return;
    FifoState& state = *fifoState(view_, after_, channel_);
    state.sent = alignedToCall(state).sent + packets_;
  }

 private:
  /// Half panels in half a ring. When all teams have taken that many, a barrier ensures that no team polls packets that
  /// another team has not read, and credit is given.
  static constexpr std::uint32_t kCredited = kRingPackets / 2 / kPackets / Team::kTeams * Team::kTeams;
  static_assert(kCredited > 0);
  static constexpr int kEach = kFragments / Team::kThreads;  ///< fragments of a thread
  static_assert(kEach * Team::kThreads == kFragments);

  using Numbers = float[kEach][4];

  /// Half a panel: 8 columns of a head.
  struct Half {
    int head, column;

    SEQPAR_DEVICE Half(int number, int ofHead)
        : head(static_cast<int>(static_cast<unsigned>(number) / static_cast<unsigned>(ofHead))),
          column(number - head * ofHead) {}
    SEQPAR_DEVICE void advance(int halves, int ofHead) {
      for (column += halves; column >= ofHead; column -= ofHead) ++head;
    }
  };

  /// Whether the half is multiplied by the head's matrix.
  SEQPAR_DEVICE bool passes(int head) const {
    return (scan_.total != nullptr || !scan_.last()) && !scan_.forgets(head) &&
           !(scan_.first() && scan_.initial == nullptr);
  }
  SEQPAR_DEVICE MatrixView matrixOf(int head) const {
    const float* const data = scan_.transition + static_cast<std::size_t>(head) * (Rows * Rows);
    return reverse_ ? MatrixView{data, 1, Rows, Rows} : MatrixView{data, Rows, 1, Rows};
  }
  SEQPAR_DEVICE int fragmentOf(int i) const { return team_.thread() + i * Team::kThreads; }
  /// Index of a fragment's first element in a buffer of the caller.
  SEQPAR_DEVICE std::size_t elementOf(const Half& half, int fragmentNumber) const {
    const PanelFragment fragment(fragmentNumber);
    const auto row = static_cast<std::uint32_t>(half.head * Rows + fragment.row);
    return static_cast<std::uint64_t>(row) * static_cast<std::uint32_t>(scan_.dv) +
           static_cast<std::uint32_t>(half.column * 8 + fragment.column);
  }

  SEQPAR_DEVICE void load(const void* data, const Half& half, Numbers& numbers) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const float* const from = static_cast<const float*>(data) + elementOf(half, fragmentOf(i));
      const TwoFloats upper = *reinterpret_cast<const TwoFloats*>(from);
      const TwoFloats lower = *reinterpret_cast<const TwoFloats*>(from + scan_.dv);
      numbers[i][0] = upper.left;
      numbers[i][1] = upper.right;
      numbers[i][2] = lower.left;
      numbers[i][3] = lower.right;
    }
  }
  SEQPAR_DEVICE void store(void* data, const Half& half, const Numbers& numbers) const {
    if (data == nullptr) return;
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      float* const to = static_cast<float*>(data) + elementOf(half, fragmentOf(i));
      *reinterpret_cast<TwoFloats*>(to) = {numbers[i][0], numbers[i][1]};
      *reinterpret_cast<TwoFloats*>(to + scan_.dv) = {numbers[i][2], numbers[i][3]};
    }
  }

  /// Loads that do not depend on the previous rank are issued before any wait. Returns false if another team timed out.
  SEQPAR_DEVICE bool work(int begin) {
    const int ofHead = scan_.dv / 8;
    Half half(begin + team_.number(), ofHead);
    const std::uint64_t received = alignedToCall(*fifoState(view_, before_, channel_)).received;
    const std::uint64_t sent = alignedToCall(*fifoState(view_, after_, channel_)).sent;
    bool through = passes(half.head), stepEnded = false;
    Numbers s, coming;
    load(scan_.state, half, s);
    if (scan_.first()) bring(half, coming);
    if (through) product_.load(matrixOf(half.head));
    int loaded = through ? half.head : -1;
    Sender<Memory> out(view_, after_, channel_, sent,
                       Memory::acquire(Sender<Memory>::creditWord(view_, after_, channel_)));
    const Receiver<Memory> in(view_, before_, channel_, received);
    const auto number = static_cast<std::uint32_t>(team_.number());
    if (!scan_.first()) poll(in, number * kPackets, coming);

    std::uint32_t taken = 0, turn = 0;
    for (std::uint32_t base = number * kPackets;;) {
      late_ = late_ || (!scan_.last() && !out.reserve(base + kPackets));
      if (!through) emit(half, out, base, s);  // the output does not depend on the incoming state

      Numbers x;
      arrive(half, in, base, coming, x);
      bool needsExact = late_;
      SplitPair* const pairs = shared_.pairs[team_.number()][turn];
      if (through) {
        SEQPAR_UNROLL
        for (int i = 0; i < kEach; ++i) needsExact |= splitFragment(pairs, PanelFragment(fragmentOf(i)), x[i]);
        if (!stepEnded) product_.endStep();
        stepEnded = true;
        turn ^= 1;
      }
      if (through || !scan_.first()) {
        needsExact = team_.any(needsExact);
        if (needsExact && team_.any(late_)) return true;
      }
      taken += Team::kTeams;
      const bool credits = !scan_.first() && taken % kCredited == 0 && taken * kPackets <= packets_;
      if (credits && team_.anyOfChannel(false)) return false;

      const Half now = half;
      const std::uint32_t at = base;
      half.advance(Team::kTeams, ofHead);
      base += Team::kTeams * kPackets;
      const bool more = base < packets_;
      if (more) scan_.first() ? bring(half, coming) : poll(in, base, coming);
      if (through) {
        SEQPAR_UNROLL
        for (int i = 0; i < kEach; ++i) {
          float product[4];
          product_.multiply(fragmentOf(i), pairs, needsExact, product);
          SEQPAR_UNROLL
          for (int n = 0; n < 4; ++n) s[i][n] += product[n];
        }
        emit(now, out, at, s);
      }
      store(scan_.prefix, now, x);
      // Late, because giving credit stalls the thread that does it.
      if (credits && team_.number() == 0 && team_.thread() == 0) {
        giveCredit<Memory>(view_, before_, channel_, received + taken * kPackets);
      }
      if (!more) return true;
      load(scan_.state, half, s);
      if (half.head == now.head) continue;
      through = passes(half.head);
      if (through && half.head != loaded) {
        product_.load(matrixOf(half.head));
        loaded = half.head;
        stepEnded = false;
      }
    }
  }

  /// Loads x_0 of a later half, on the first rank.
  SEQPAR_DEVICE void bring(const Half& half, Numbers& coming) const {
    if (scan_.initial == nullptr) {
      clear(coming);
    } else {
      load(scan_.initial, half, coming);
    }
  }
  /// Polls the packets of a later half, which may not have arrived yet.
  SEQPAR_DEVICE void poll(const Receiver<Memory>& in, std::uint32_t base, Numbers& coming) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const LamportPacket packet = in.poll(base + static_cast<std::uint32_t>(fragmentOf(i)));
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) coming[i][n] = asFloat(packet.word[n]);
    }
  }

  /// x of a half: zeros if the head starts a sequence.
  SEQPAR_DEVICE void arrive(const Half& half, const Receiver<Memory>& in, std::uint32_t base, const Numbers& coming,
                            Numbers& x) {
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      LamportPacket packet;
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) packet.word[n] = asBits(coming[i][n]);
      if (!scan_.first()) late_ = late_ || !in.take(base + static_cast<std::uint32_t>(fragmentOf(i)), packet);
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) x[i][n] = asFloat(packet.word[n]);
    }
    if (late_ || scan_.resets[half.head]) clear(x);
  }
  SEQPAR_DEVICE static void clear(Numbers& numbers) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4 * kEach; ++i) numbers[i / 4][i % 4] = 0;
  }

  /// Sends a half's result to the next rank and stores it for the caller.
  SEQPAR_DEVICE void emit(const Half& half, const Sender<Memory>& out, std::uint32_t base,
                          const Numbers& numbers) const {
    SEQPAR_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (scan_.last() || late_) break;
      LamportPacket packet;
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) packet.word[n] = sendable(asBits(numbers[i][n]), kAbsentAsFloat);
      out.put(base + static_cast<std::uint32_t>(fragmentOf(i)), packet);
    }
    store(scan_.total, half, numbers);
  }

  const PeerView& view_;
  const MatrixScan& scan_;
  int channel_;
  const Team& team_;
  Shared& shared_;
  bool reverse_;
  int before_, after_;
  Product product_;
  std::uint32_t packets_ = 0;  ///< of the call
  /// Packets of this call that are credited; negative: credit of earlier calls is owed.
  std::int32_t credited_ = 0;
  bool late_ = false;
};

}  // namespace seqpar
