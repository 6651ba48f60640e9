// CHAIN and LASP1 for MATRIX: a lane takes the panels of its groups from the position before, hops, and sends them on.
// CHAIN has one panel in a group; LASP1 as many as shared memory holds, all of which arrive before any is worked on.
// matrix_teams.h has CHAIN for the usual sizes, with the same lines in the same order.
#pragma once

#include "scan/matrix_product.h"

namespace seqpar {

/// A lane. Shared memory is 2 * scan.group panels of pairs, so that one group is filled while slow warps still read
/// the other.
template <class Memory, class Group, class Product>
class MatrixChain {
 public:
  SEQPAR_LANE MatrixChain(const PeerView& view, const MatrixScan& scan, int lane, const Group& group, SplitPair* pairs)
      : view_(view),
        scan_(scan),
        lane_(lane),
        group_(group),
        pairs_(pairs),
        slots_(slotsOf(scan.dk)),
        lines_(static_cast<std::uint32_t>(linesOf(scan.dk, scan.wireType))),
        before_(scan.first() ? view.self : scan.order[scan.position - 1]),
        after_(scan.last() ? view.self : scan.order[scan.position + 1]),
        in_(view, before_, lane, begun(*channelState(view, before_, lane)).received),
        out_(view, after_, lane, begun(*channelState(view, after_, lane)).sent,
             Memory::acquire(Sender<Memory>::creditWord(view, after_, lane))) {}

  SEQPAR_LANE void run(GroupRange range) {
    given_ = channelState(view_, before_, lane_)->given;
    received_ = begun(*channelState(view_, before_, lane_)).received;
    if (range.begin < range.end) lookAhead(range.begin);
    for (int number = range.begin; number < range.end; ++number) {
      const PanelGroup panels = scan_.at(number);
      const int next = number + 1 < range.end ? number + 1 : kNone;
      const bool nothing = scan_.first() && scan_.initial == nullptr;
      if (!(nothing || scan_.forgets(panels.head) ? passBy(panels, next) : hop(panels, next))) return;
    }
    if (group_.any(late_)) return;
    finish();
  }

 private:
  static constexpr int kNone = -1;

  SEQPAR_LANE CallerPanel<const void*> own(const void* data, const PanelGroup& panels, int i) const {
    return {data, scan_, panels.head, panels.first + i};
  }
  SEQPAR_LANE CallerPanel<void*> own(void* data, const PanelGroup& panels, int i) const {
    return {data, scan_, panels.head, panels.first + i};
  }

  /// Loads what this thread needs first of a group, long before it does; lines of x may not have arrived yet. Called
  /// when the lines of earlier groups are counted as taken.
  SEQPAR_LANE void lookAhead(int number) {
    const int slot = group_.thread();
    if (number == kNone || slot >= slots_) return;
    loadSlot<AnyPanels>(own(scan_.state, scan_.at(number), 0), PanelSlot(slot), state_);
    if (!scan_.first()) seen_ = lookAtSlot<AnyPanels>(in_, takenLines_, slots_, slot, scan_.wireType);
  }

  /// S of a slot; `ahead` is that of this thread's first one.
  SEQPAR_LANE void loadState(const PanelGroup& panels, int i, int slot, const float (&ahead)[8], float (&s)[8]) const {
    if (i == 0 && slot == group_.thread()) {
      SEQPAR_UNROLL
      for (int n = 0; n < 8; ++n) s[n] = ahead[n];
    } else {
      loadSlot<AnyPanels>(own(scan_.state, panels, i), PanelSlot(slot), s);
    }
  }

  /// What comes in is not part of what goes out, which so needs not wait.
  SEQPAR_LANE bool passBy(const PanelGroup& panels, int next) {
    for (int i = 0; i < panels.count; ++i) {
      reserve();
      for (int slot = group_.thread(); slot < slots_; slot += group_.threads()) {
        float numbers[8];
        loadState(panels, i, slot, state_, numbers);
        send(slot, numbers);
        storeSlot<AnyPanels>(own(scan_.total, panels, i), PanelSlot(slot), numbers);
      }
      sentLines_ += scan_.last() ? 0 : lines_;
    }
    for (int i = 0; i < panels.count; ++i) {
      for (int slot = group_.thread(); slot < slots_; slot += group_.threads()) {
        float x[8];
        arrive(panels, i, slot, x);
        if (!late_) storeSlot<AnyPanels>(own(scan_.prefix, panels, i), PanelSlot(slot), x);
      }
      takenLines_ += scan_.first() ? 0 : lines_;
    }
    lookAhead(next);
    if (scan_.first()) return true;  // what is late shows at the end
    if (group_.any(late_)) return false;
    credit();
    return true;
  }

  SEQPAR_LANE bool hop(const PanelGroup& panels, int next) {
    const bool wanted = scan_.total != nullptr || !scan_.last();
    if (wanted && panels.head != loaded_) {
      product_.load(transitionOf(scan_, panels.head));
      loaded_ = panels.head;
    }
    SplitPair* const shared = pairs_ + static_cast<std::size_t>(turn_) * scan_.group * pairsOf(scan_.dk);
    turn_ ^= 1;
    bool odd = false;
    for (int i = 0; i < panels.count; ++i) {
      for (int slot = group_.thread(); slot < slots_; slot += group_.threads()) {
        float x[8];
        arrive(panels, i, slot, x);
        odd |= splitSlot(shared + i * pairsOf(scan_.dk), PanelSlot(slot), x);
      }
      takenLines_ += scan_.first() ? 0 : lines_;
    }
    odd = group_.any(odd || late_);
    if (odd && group_.any(late_)) return false;

    float ahead[8];
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) ahead[n] = state_[n];
    lookAhead(next);
    for (int i = 0; i < panels.count; ++i) {
      const SplitPair* const panel = shared + i * pairsOf(scan_.dk);
      if (!wanted) {
        for (int slot = group_.thread(); slot < slots_; slot += group_.threads()) keepPrefix(panels, i, panel, slot);
        continue;
      }
      reserve();
      product_.multiply(group_, panel, odd, [&](int slot, float(&numbers)[8]) {
        float s[8];
        loadState(panels, i, slot, ahead, s);
        SEQPAR_UNROLL
        for (int n = 0; n < 8; ++n) numbers[n] += s[n];
        send(slot, numbers);
        storeSlot<AnyPanels>(own(scan_.total, panels, i), PanelSlot(slot), numbers);
        keepPrefix(panels, i, panel, slot);
      });
      sentLines_ += scan_.last() ? 0 : lines_;
    }
    credit();
    return true;
  }

  /// x of a slot: what a head that begins a sequence has is zeros.
  SEQPAR_LANE void arrive(const PanelGroup& panels, int i, int slot, float (&x)[8]) {
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) x[n] = 0;
    if (scan_.first()) {
      if (!scan_.resets[panels.head]) loadSlot<AnyPanels>(own(scan_.initial, panels, i), PanelSlot(slot), x);
      return;
    }
    if (late_) return;
    if (i != 0 || slot != group_.thread()) {
      seen_ = lookAtSlot<AnyPanels>(in_, takenLines_, slots_, slot, scan_.wireType);
    }
    late_ = !takeSlot<AnyPanels>(in_, takenLines_, slots_, slot, scan_.wireType, seen_, x);
    if (!late_ && !scan_.resets[panels.head]) return;
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) x[n] = 0;
  }

  SEQPAR_LANE void keepPrefix(const PanelGroup& panels, int i, const SplitPair* panel, int slot) const {
    if (scan_.prefix == nullptr) return;
    float x[8];
    joinSlot(panel, PanelSlot(slot), x);
    storeSlot<AnyPanels>(own(scan_.prefix, panels, i), PanelSlot(slot), x);
  }

  SEQPAR_LANE void reserve() { late_ = late_ || (!scan_.last() && !out_.reserve(sentLines_ + lines_)); }
  SEQPAR_LANE void send(int slot, const float (&numbers)[8]) const {
    if (!late_ && !scan_.last()) putSlot<AnyPanels>(out_, sentLines_, slots_, slot, scan_.wireType, numbers);
  }

  /// After a barrier that follows the taking. Telling the other side holds up the thread that does it, so half a ring
  /// is waited for.
  SEQPAR_LANE void credit(std::uint32_t least = kRingLines / 2) {
    const std::uint64_t taken = received_ + takenLines_;
    if (taken - given_ < least) return;
    if (group_.thread() == 0) giveCredit<Memory>(view_, before_, lane_, taken);
    given_ = taken;
  }

  SEQPAR_LANE void finish() {
    credit(kCreditLines);
    if (group_.thread() != 0) return;
    if (!scan_.first()) {
      ChannelState& state = *channelState(view_, before_, lane_);
      state.received = received_ + takenLines_;
      state.given = given_;
    }
    if (scan_.last()) return;
    ChannelState& state = *channelState(view_, after_, lane_);
    state.sent = begun(state).sent + sentLines_;
  }

  const PeerView& view_;
  const MatrixScan& scan_;
  int lane_;
  const Group& group_;
  SplitPair* pairs_;
  int slots_;
  std::uint32_t lines_;
  int before_, after_;
  Receiver<Memory> in_;
  Sender<Memory> out_;
  Product product_;
  float state_[8];  ///< see lookAhead()
  SlotLines seen_;
  std::uint64_t received_ = 0, given_ = 0;
  std::uint32_t takenLines_ = 0, sentLines_ = 0;
  int loaded_ = -1, turn_ = 0;
  bool late_ = false;
};

}  // namespace seqpar
