// TRANSPOSED for MATRIX: every position sends its map of each group to the group's owner. The owner applies the maps of
// all positions in order and sends each position its x.
#pragma once

#include "kernels/scan/matrix_maps.h"

namespace seqpar {

template <class Memory, class Group, class Product>
class MatrixTransposed {
 public:
  /// The CTA processes the groups number, number + ctas, ..., in rounds of one group per position. A group's map and
  /// its x together must fit the cursor's rings: then no sender can block on another sender.
  SEQPAR_DEVICE MatrixTransposed(const PeerView& view, const MatrixScan& scan, int number, int ctas, const Group& group,
                                 const MapMemory& memory)
      : scan_(scan),
        number_(number),
        ctas_(ctas),
        maps_(scan, group, memory),
        out_(view, number, group, *memory.out),
        in_(view, number, group, *memory.in) {}

  SEQPAR_DEVICE void run() {
    for (int first = number_; first < scan_.groups(); first += ctas_ * scan_.positions) {
      if (!scan_.last() && !scatter(first)) return;
      const int mine = numberOf(first, scan_.position);
      if (mine < scan_.groups() && !combine(scan_.at(mine))) return;
      if (!take(first)) return;
    }
    out_.finish();
    in_.finish();
  }

 private:
  SEQPAR_DEVICE std::uint32_t bit(int position) const { return 1U << scan_.order[position]; }
  /// The group of the round that a position owns.
  SEQPAR_DEVICE int numberOf(int first, int position) const { return first + position * ctas_; }

  SEQPAR_DEVICE bool scatter(int first) {
    for (int owner = 0; owner < scan_.positions && numberOf(first, owner) < scan_.groups(); ++owner) {
      if (!maps_.sendOwn(out_, bit(owner), scan_.at(numberOf(first, owner)))) return false;
    }
    return true;
  }

  SEQPAR_DEVICE bool combine(const PanelGroup& panels) {
    for (int position = 1; position < scan_.positions; ++position) {
      const int before = scan_.order[position - 1];
      if (!(position == 1 ? maps_.takeAbsolute(in_, before, panels) : maps_.takeThrough(in_, before, panels))) {
        return false;
      }
      if (!maps_.sendState(out_, bit(position), panels)) return false;
    }
    return true;
  }

  SEQPAR_DEVICE bool take(int first) {
    for (int owner = 0; owner < scan_.positions && numberOf(first, owner) < scan_.groups(); ++owner) {
      const PanelGroup panels = scan_.at(numberOf(first, owner));
      if (scan_.first()) {
        maps_.startFromInitial(panels);
      } else if (!maps_.takeAbsolute(in_, scan_.order[owner], panels)) {
        return false;
      }
      maps_.hop(panels);
    }
    return true;
  }

  const MatrixScan& scan_;
  int number_, ctas_;
  MatrixMaps<Memory, Group, Product> maps_;
  OutCursor<Memory, Group> out_;
  InCursor<Memory, Group> in_;
};

}  // namespace seqpar
