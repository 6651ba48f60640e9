// DOUBLING for MATRIX: in each round a position hands on the composed map of what is before it, and prepends to its own
// what it gets. Source: Traeff, "exclusive scan" with 123-doubling, arXiv 2507.04785.
#pragma once

#include "scan/matrix_maps.h"

namespace seqpar {

template <class Memory, class Group, class Product>
class MatrixDoubling : private MatrixMaps<Memory, Group, Product> {
 public:
  /// The CTA's share is the groups number, number + ctas, ...
  SEQPAR_LANE MatrixDoubling(const PeerView& view, const MatrixScan& scan, int number, int ctas, const Group& group,
                             const MapMemory& memory)
      : Maps(scan, group, memory),
        number_(number),
        ctas_(ctas),
        out_(view, number, group, *memory.out),
        in_(view, number, group, *memory.in) {}

  SEQPAR_LANE void run() {
    for (int at = number_; at < scan_.groups(); at += ctas_) {
      const PanelGroup panels = scan_.at(at);
      known_ = false;
      for (int i = 0; has(i); ++i) {
        if (!send(roundOf(i), panels) || !receive(roundOf(i), panels)) return;
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

  /// A position p sends to p + skip the map of the `skip` positions before p or, with `own`, of skip - 1 and p itself.
  struct Round {
    int skip;
    bool own;
  };
  SEQPAR_LANE static Round roundOf(int i) { return i < 2 ? Round{i + 1, true} : Round{3 << (i - 2), false}; }
  SEQPAR_LANE bool has(int i) const { return i < 2 ? i + 1 < scan_.positions : roundOf(i).skip < scan_.positions - 1; }
  /// Nothing lies in front of position 0.
  SEQPAR_LANE bool sends(int from, Round round) const {
    return from >= 0 && from + round.skip < scan_.positions && (round.own || from > 0);
  }
  SEQPAR_LANE static bool isAbsolute(int from, Round round) { return from - round.skip + (round.own ? 1 : 0) <= 0; }

  SEQPAR_LANE MatrixView before() const { return this->inShared(memory_.matrix[current_]); }

  SEQPAR_LANE bool send(Round round, const PanelGroup& panels) {
    if (!sends(scan_.position, round)) return true;
    const std::uint32_t to = 1U << scan_.order[scan_.position + round.skip];
    if (round.own && !known_) return this->sendOwn(out_, to, panels);
    const bool ownKeeps = !scan_.forgets(panels.head);
    if (!isAbsolute(scan_.position, round)) {
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

  /// This position's matrix times the one before it.
  SEQPAR_LANE bool sendComposed(std::uint32_t to, const PanelGroup& panels) {
    const auto lines = static_cast<std::uint32_t>(linesOf(scan_.dk, seqparFloat32));
    product_.load(transitionOf(scan_, panels.head));
    for (int column = 0; column < this->matrixPanels(); ++column) {
      bool odd = false;
      for (int slot = group_.thread(); slot < this->slots_; slot += group_.threads()) {
        float numbers[8];
        this->loadMatrixSlot(before(), column, PanelSlot(slot), numbers);
        odd |= splitSlot(this->passing(), PanelSlot(slot), numbers);
      }
      odd = group_.any(odd);
      if (!out_.begin(to, lines)) return false;
      product_.multiply(group_, this->passing(), odd,
                        [&](int slot, float(&numbers)[8]) { this->put(out_, to, slot, seqparFloat32, numbers); });
      out_.end(to, lines);
    }
    return true;
  }

  SEQPAR_LANE bool receive(Round round, const PanelGroup& panels) {
    const int from = scan_.position - round.skip;
    if (!sends(from, round)) return true;
    const int peer = scan_.order[from];
    bool keeps = false;
    if (!isAbsolute(from, round) && !this->takeKeeps(in_, peer, keeps)) return false;
    if (known_) return prepend(peer, keeps, panels);
    if (keeps && !this->takeMatrix(in_, peer, memory_.matrix[current_])) return false;
    known_ = true;
    keeps_ = keeps;
    return this->takeAbsolute(in_, peer, panels);
  }

  /// What is known is applied to what arrives.
  SEQPAR_LANE bool prepend(int peer, bool keeps, const PanelGroup& panels) {
    if (keeps_) product_.load(before());
    for (int column = 0; keeps && column < this->matrixPanels(); ++column) {
      bool odd = false;
      if (!takePassing(peer, seqparFloat32, odd)) return false;
      if (!keeps_) continue;
      product_.multiply(group_, this->passing(), odd, [&](int slot, float(&numbers)[8]) {
        this->storeMatrixSlot(memory_.matrix[1 - current_], column, PanelSlot(slot), numbers);
      });
      group_.sync();
    }
    const bool through = keeps_;
    const bool fine = this->replaceStates(panels, [&](int i, SplitPair* to, bool& oddAfter) {
      bool odd = false;
      if (!takePassing(peer, scan_.wireType, odd)) return false;
      const auto add = [&](int slot, float(&numbers)[8]) {
        float s[8];
        joinSlot(this->state(i), PanelSlot(slot), s);
        for (int n = 0; n < 8; ++n) numbers[n] += s[n];
        oddAfter |= splitSlot(to, PanelSlot(slot), numbers);
      };
      if (through) {
        product_.multiply(group_, this->passing(), odd, add);
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

  SEQPAR_LANE bool takePassing(int peer, int type, bool& odd) {
    const bool fine = this->takePanel(in_, peer, type, [&](int slot, const float(&numbers)[8]) {
      odd |= splitSlot(this->passing(), PanelSlot(slot), numbers);
    });
    odd = group_.any(odd);
    return fine;
  }

  int number_, ctas_;
  OutPort<Memory, Group> out_;
  InPort<Memory, Group> in_;
  bool known_ = false;  ///< the state, and if keeps_ the matrix, are of a run of positions before this one
  bool keeps_ = false;
  int current_ = 0;
};

}  // namespace seqpar
