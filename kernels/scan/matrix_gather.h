// ONESHOT and LASP2 for MATRIX: every position sends its map to all later positions, or to all others, and each
// position applies the maps of the positions before it in order.
#pragma once

#include "kernels/scan/matrix_maps.h"

namespace seqpar {

template <class Memory, class Group, class Product>
class MatrixGather {
 public:
  /// `toAll`: LASP2. The CTA processes the groups number, number + ctas, ... A group's map must fit the cursor's rings:
  /// then no sender can block on another sender.
  SEQPAR_DEVICE MatrixGather(const PeerView& view, const MatrixScan& scan, int number, int ctas, bool toAll,
                             const Group& group, const MapMemory& memory)
      : scan_(scan),
        number_(number),
        ctas_(ctas),
        toAll_(toAll),
        maps_(scan, group, memory),
        out_(view, number, group, *memory.out),
        in_(view, number, group, *memory.in) {}

  SEQPAR_DEVICE void run() {
    std::uint32_t to = 0;
    for (int position = toAll_ ? 0 : scan_.position + 1; position < scan_.positions; ++position) {
      if (position != scan_.position) to |= 1U << scan_.order[position];
    }
    for (int at = number_; at < scan_.groups(); at += ctas_) {
      const PanelGroup panels = scan_.at(at);
      if (to != 0 && !maps_.sendOwn(out_, to, panels)) return;
      if (!receive(panels)) return;
      maps_.hop(panels);
    }
    out_.finish();
    in_.finish();
  }

 private:
  SEQPAR_DEVICE bool receive(const PanelGroup& panels) {
    if (scan_.first()) maps_.startFromInitial(panels);
    for (int position = 0; position < scan_.position; ++position) {
      const int peer = scan_.order[position];
      if (!(position == 0 ? maps_.takeAbsolute(in_, peer, panels) : maps_.takeThrough(in_, peer, panels))) return false;
    }
    for (int position = scan_.position + 1; toAll_ && position < scan_.positions; ++position) {
      if (!maps_.discard(in_, scan_.order[position], panels)) return false;
    }
    return true;
  }

  const MatrixScan& scan_;
  int number_, ctas_;
  bool toAll_;
  MatrixMaps<Memory, Group, Product> maps_;
  OutCursor<Memory, Group> out_;
  InCursor<Memory, Group> in_;
};

}  // namespace seqpar
