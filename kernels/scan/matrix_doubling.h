// DOUBLING for MATRIX: in each round a position sends the composed map of the positions before it, and prepends the map
// that it receives to its own. Source: Traeff, "exclusive scan" with 123-doubling, arXiv 2507.04785.
#pragma once

#include "kernels/scan/doubling_rounds.h"
#include "kernels/scan/matrix_maps.h"

namespace seqpar {

template <class Memory, class Group, class Product>
class MatrixDoubling : private MatrixMaps<Memory, Group, Product> {
 public:
  /// The CTA processes the groups number, number + ctas, ...
  SEQPAR_DEVICE MatrixDoubling(const PeerView& view, const MatrixScan& scan, int number, int ctas, const Group& group,
                               const MapMemory& memory)
      : Maps(scan, group, memory),
        number_(number),
        ctas_(ctas),
        out_(view, number, group, *memory.out),
        in_(view, number, group, *memory.in) {}

  SEQPAR_DEVICE void run() {
    for (int at = number_; at < scan_.groups(); at += ctas_) {
      const PanelGroup panels = scan_.at(at);
      known_ = false;
      for (int i = 0; hasDoublingRound(i, scan_.positions); ++i) {
        if (!send(doublingRound(i), panels) || !receive(doublingRound(i), panels)) return;
      }
      if (scan_.first()) this->startFromInitial(panels);
      this->hop(panels);
    }
    out_.finish();
    in_.finish();
  }

 private:
  using Maps = MatrixMaps<Memory, Group, Product>;
  using Maps::group_;
  using Maps::memory_;
  using Maps::product_;
  using Maps::scan_;

  SEQPAR_DEVICE MatrixView before() const { return this->inShared(memory_.matrix[current_]); }

  SEQPAR_DEVICE bool send(DoublingRound round, const PanelGroup& panels) {
    if (!round.sends(scan_.position, scan_.positions)) return true;
    const std::uint32_t to = 1U << scan_.order[scan_.position + round.skip];
    if (round.own && !known_) return this->sendOwn(out_, to, panels);
    const bool ownKeeps = !scan_.forgets(panels.head);
    if (!round.isAbsolute(scan_.position)) {
      const bool keeps = keeps_ && (!round.own || ownKeeps);
      if (!this->sendKeeps(out_, to, keeps)) return false;
      if (keeps && !(round.own ? sendComposed(to, panels) : this->sendMatrix(out_, to, before()))) return false;
    }
    if (!round.own) return this->sendState(out_, to, panels);
    for (int i = 0; i < panels.count; ++i) {
      if (!this->sendThrough(out_, to, panels, i, ownKeeps)) return false;
    }
    return true;
  }

  /// Sends this position's matrix times the composed matrix of the positions before it.
  SEQPAR_DEVICE bool sendComposed(std::uint32_t to, const PanelGroup& panels) {
    const auto packets = static_cast<std::uint32_t>(packetsOf(scan_.dk, seqparFloat32));
    product_.load(transitionOf(scan_, panels.head));
    for (int column = 0; column < this->matrixPanels(); ++column) {
      bool needsExact = false;
      for (int fragment = group_.thread(); fragment < this->fragments_; fragment += group_.threads()) {
        float numbers[8];
        this->loadMatrixFragment(before(), column, PanelFragment(fragment), numbers);
        needsExact |= splitFragment(this->passing(), PanelFragment(fragment), numbers);
      }
      needsExact = group_.any(needsExact);
      if (!out_.begin(to, packets)) return false;
      product_.multiply(group_, this->passing(), needsExact, [&](int fragment, float(&numbers)[8]) {
        this->put(out_, to, fragment, seqparFloat32, numbers);
      });
      out_.end(to, packets);
    }
    return true;
  }

  SEQPAR_DEVICE bool receive(DoublingRound round, const PanelGroup& panels) {
    const int from = scan_.position - round.skip;
    if (!round.sends(from, scan_.positions)) return true;
    const int peer = scan_.order[from];
    bool keeps = false;
    if (!round.isAbsolute(from) && !this->takeKeeps(in_, peer, keeps)) return false;
    if (known_) return prepend(peer, keeps, panels);
    if (keeps && !this->takeMatrix(in_, peer, memory_.matrix[current_])) return false;
    known_ = true;
    keeps_ = keeps;
    return this->takeAbsolute(in_, peer, panels);
  }

  /// Applies the known map to the received one.
  SEQPAR_DEVICE bool prepend(int peer, bool keeps, const PanelGroup& panels) {
    if (keeps_) product_.load(before());
    for (int column = 0; keeps && column < this->matrixPanels(); ++column) {
      bool needsExact = false;
      if (!takePassing(peer, seqparFloat32, needsExact)) return false;
      if (!keeps_) continue;
      product_.multiply(group_, this->passing(), needsExact, [&](int fragment, float(&numbers)[8]) {
        this->storeMatrixFragment(memory_.matrix[1 - current_], column, PanelFragment(fragment), numbers);
      });
      group_.sync();
    }
    const bool through = keeps_;
    const bool fine = this->replaceStates(panels, [&](int i, SplitPair* to, bool& needsExactAfter) {
      bool needsExact = false;
      if (!takePassing(peer, scan_.wireType, needsExact)) return false;
      const auto add = [&](int fragment, float(&numbers)[8]) {
        float s[8];
        joinFragment(this->state(i), PanelFragment(fragment), s);
        for (int n = 0; n < 8; ++n) numbers[n] += s[n];
        needsExactAfter |= splitFragment(to, PanelFragment(fragment), numbers);
      };
      if (through) {
        product_.multiply(group_, this->passing(), needsExact, add);
      } else {
        this->forZeros(add);
      }
      group_.sync();
      return true;
    });
    if (keeps && keeps_) current_ = 1 - current_;
    keeps_ = keeps && keeps_;
    return fine;
  }

  SEQPAR_DEVICE bool takePassing(int peer, int type, bool& needsExact) {
    const bool fine = this->takePanel(in_, peer, type, [&](int fragment, const float(&numbers)[8]) {
      needsExact |= splitFragment(this->passing(), PanelFragment(fragment), numbers);
    });
    needsExact = group_.any(needsExact);
    return fine;
  }

  int number_, ctas_;
  OutCursor<Memory, Group> out_;
  InCursor<Memory, Group> in_;
  bool known_ = false;  ///< the state, and with keeps_ the matrix, are the map of the positions directly before this
                        ///< one
  bool keeps_ = false;
  int current_ = 0;
};

}  // namespace seqpar
