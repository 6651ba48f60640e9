// CHAIN and LASP1 for MATRIX: a channel receives the panels of its groups from the previous position, hops, and sends
// them on. A group of CHAIN is one panel; a group of LASP1 is as many panels as shared memory holds, and all of them
// arrive before the hop. matrix_teams.h implements CHAIN for the usual sizes, with the same packets in the same order.
#pragma once

#include "kernels/scan/matrix_product.h"

namespace seqpar {

/// A channel. Shared memory is 2 * scan.group panels of pairs: one group is filled while slow warps still read the
/// other.
template <class Memory, class Group, class Product>
class MatrixChain {
 public:
  SEQPAR_DEVICE MatrixChain(const PeerView& view, const MatrixScan& scan, int channel, const Group& group,
                            SplitPair* pairs)
      : view_(view),
        scan_(scan),
        channel_(channel),
        group_(group),
        pairs_(pairs),
        fragments_(fragmentsOf(scan.dk)),
        packets_(static_cast<std::uint32_t>(packetsOf(scan.dk, scan.wireType))),
        before_(scan.first() ? view.self : scan.order[scan.position - 1]),
        after_(scan.last() ? view.self : scan.order[scan.position + 1]),
        in_(view, before_, channel, alignedToCall(*fifoState(view, before_, channel)).received),
        out_(view, after_, channel, alignedToCall(*fifoState(view, after_, channel)).sent,
             Memory::acquire(Sender<Memory>::creditWord(view, after_, channel))) {}

  SEQPAR_DEVICE void run(GroupRange range) {
    credited_ = fifoState(view_, before_, channel_)->credited;
    received_ = alignedToCall(*fifoState(view_, before_, channel_)).received;
    if (range.begin < range.end) pollAhead(range.begin);
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

  SEQPAR_DEVICE CallerPanel<const void*> own(const void* data, const PanelGroup& panels, int i) const {
    return {data, scan_, panels.head, panels.first + i};
  }
  SEQPAR_DEVICE CallerPanel<void*> own(void* data, const PanelGroup& panels, int i) const {
    return {data, scan_, panels.head, panels.first + i};
  }

  /// Loads early what this thread needs first of a group; packets of x may not have arrived yet. Called when the
  /// packets of earlier groups are counted as taken.
  SEQPAR_DEVICE void pollAhead(int number) {
    const int fragment = group_.thread();
    if (number == kNone || fragment >= fragments_) return;
    loadFragment<AnyPanels>(own(scan_.state, scan_.at(number), 0), PanelFragment(fragment), state_);
    if (!scan_.first()) seen_ = pollFragment<AnyPanels>(in_, readPackets_, fragments_, fragment, scan_.wireType);
  }

  /// S of a fragment; `ahead` is the S of this thread's first fragment.
  SEQPAR_DEVICE void loadState(const PanelGroup& panels, int i, int fragment, const float (&ahead)[8],
                               float (&s)[8]) const {
    if (i == 0 && fragment == group_.thread()) {
      SEQPAR_UNROLL
      for (int n = 0; n < 8; ++n) s[n] = ahead[n];
    } else {
      loadFragment<AnyPanels>(own(scan_.state, panels, i), PanelFragment(fragment), s);
    }
  }

  /// The output does not depend on the incoming state, so sending it does not wait.
  SEQPAR_DEVICE bool passBy(const PanelGroup& panels, int next) {
    for (int i = 0; i < panels.count; ++i) {
      reserve();
      for (int fragment = group_.thread(); fragment < fragments_; fragment += group_.threads()) {
        float numbers[8];
        loadState(panels, i, fragment, state_, numbers);
        send(fragment, numbers);
        storeFragment<AnyPanels>(own(scan_.total, panels, i), PanelFragment(fragment), numbers);
      }
      sentPackets_ += scan_.last() ? 0 : packets_;
    }
    for (int i = 0; i < panels.count; ++i) {
      for (int fragment = group_.thread(); fragment < fragments_; fragment += group_.threads()) {
        float x[8];
        arrive(panels, i, fragment, x);
        if (!late_) storeFragment<AnyPanels>(own(scan_.prefix, panels, i), PanelFragment(fragment), x);
      }
      readPackets_ += scan_.first() ? 0 : packets_;
    }
    pollAhead(next);
    if (scan_.first()) return true;  // a timeout is reported at the end
    if (group_.any(late_)) return false;
    credit();
    return true;
  }

  SEQPAR_DEVICE bool hop(const PanelGroup& panels, int next) {
    const bool needed = scan_.total != nullptr || !scan_.last();
    if (needed && panels.head != loaded_) {
      product_.load(transitionOf(scan_, panels.head));
      loaded_ = panels.head;
    }
    SplitPair* const shared = pairs_ + static_cast<std::size_t>(turn_) * scan_.group * pairsOf(scan_.dk);
    turn_ ^= 1;
    bool needsExact = false;
    for (int i = 0; i < panels.count; ++i) {
      for (int fragment = group_.thread(); fragment < fragments_; fragment += group_.threads()) {
        float x[8];
        arrive(panels, i, fragment, x);
        needsExact |= splitFragment(shared + i * pairsOf(scan_.dk), PanelFragment(fragment), x);
      }
      readPackets_ += scan_.first() ? 0 : packets_;
    }
    needsExact = group_.any(needsExact || late_);
    if (needsExact && group_.any(late_)) return false;

    float ahead[8];
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) ahead[n] = state_[n];
    pollAhead(next);
    for (int i = 0; i < panels.count; ++i) {
      const SplitPair* const panel = shared + i * pairsOf(scan_.dk);
      if (!needed) {
        for (int fragment = group_.thread(); fragment < fragments_; fragment += group_.threads())
          keepPrefix(panels, i, panel, fragment);
        continue;
      }
      reserve();
      product_.multiply(group_, panel, needsExact, [&](int fragment, float(&numbers)[8]) {
        float s[8];
        loadState(panels, i, fragment, ahead, s);
        SEQPAR_UNROLL
        for (int n = 0; n < 8; ++n) numbers[n] += s[n];
        send(fragment, numbers);
        storeFragment<AnyPanels>(own(scan_.total, panels, i), PanelFragment(fragment), numbers);
        keepPrefix(panels, i, panel, fragment);
      });
      sentPackets_ += scan_.last() ? 0 : packets_;
    }
    credit();
    return true;
  }

  /// x of a fragment: zeros if the head starts a sequence.
  SEQPAR_DEVICE void arrive(const PanelGroup& panels, int i, int fragment, float (&x)[8]) {
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) x[n] = 0;
    if (scan_.first()) {
      if (!scan_.resets[panels.head])
        loadFragment<AnyPanels>(own(scan_.initial, panels, i), PanelFragment(fragment), x);
      return;
    }
    if (late_) return;
    if (i != 0 || fragment != group_.thread()) {
      seen_ = pollFragment<AnyPanels>(in_, readPackets_, fragments_, fragment, scan_.wireType);
    }
    late_ = !takeFragment<AnyPanels>(in_, readPackets_, fragments_, fragment, scan_.wireType, seen_, x);
    if (!late_ && !scan_.resets[panels.head]) return;
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) x[n] = 0;
  }

  SEQPAR_DEVICE void keepPrefix(const PanelGroup& panels, int i, const SplitPair* panel, int fragment) const {
    if (scan_.prefix == nullptr) return;
    float x[8];
    joinFragment(panel, PanelFragment(fragment), x);
    storeFragment<AnyPanels>(own(scan_.prefix, panels, i), PanelFragment(fragment), x);
  }

  SEQPAR_DEVICE void reserve() { late_ = late_ || (!scan_.last() && !out_.reserve(sentPackets_ + packets_)); }
  SEQPAR_DEVICE void send(int fragment, const float (&numbers)[8]) const {
    if (!late_ && !scan_.last())
      putFragment<AnyPanels>(out_, sentPackets_, fragments_, fragment, scan_.wireType, numbers);
  }

  /// Called after a barrier that follows the reads. Giving credit stalls the thread that does it, so credit is given
  /// for at least half a ring.
  SEQPAR_DEVICE void credit(std::uint32_t least = kRingPackets / 2) {
    const std::uint64_t tail = received_ + readPackets_;
    if (tail - credited_ < least) return;
    if (group_.thread() == 0) giveCredit<Memory>(view_, before_, channel_, tail);
    credited_ = tail;
  }

  SEQPAR_DEVICE void finish() {
    credit(kCreditPackets);
    if (group_.thread() != 0) return;
    if (!scan_.first()) {
      FifoState& state = *fifoState(view_, before_, channel_);
      state.received = received_ + readPackets_;
      state.credited = credited_;
    }
    if (scan_.last()) return;
    FifoState& state = *fifoState(view_, after_, channel_);
    state.sent = alignedToCall(state).sent + sentPackets_;
  }

  const PeerView& view_;
  const MatrixScan& scan_;
  int channel_;
  const Group& group_;
  SplitPair* pairs_;
  int fragments_;
  std::uint32_t packets_;
  int before_, after_;
  Receiver<Memory> in_;
  Sender<Memory> out_;
  Product product_;
  float state_[8];  ///< see pollAhead()
  FragmentPackets seen_;
  std::uint64_t received_ = 0, credited_ = 0;
  std::uint32_t readPackets_ = 0, sentPackets_ = 0;
  int loaded_ = -1, turn_ = 0;
  bool late_ = false;
};

}  // namespace seqpar
