// LASP2 for MATRIX if a matrix exceeds shared memory or a ring: panel by panel, every position sends its map to all
// others and stores theirs in device memory; then it applies the maps of the positions before it in order.
#pragma once

#include "kernels/scan/matrix_maps.h"

namespace seqpar {

/// Device memory of a CTA: the maps of the positions before, each with a matrix of rows of matrixStride(dk), and panels
/// of 8 numbers per fragment.
struct GatheredMaps {
  float* numbers;
  int dk, panels;  ///< panels of a group

  SEQPAR_BOTH constexpr std::size_t matrixNumbers() const { return static_cast<std::size_t>(dk) * matrixStride(dk); }
  SEQPAR_BOTH constexpr std::size_t panelNumbers() const { return static_cast<std::size_t>(8) * fragmentsOf(dk); }
  SEQPAR_BOTH constexpr std::size_t mapNumbers() const { return matrixNumbers() + panels * panelNumbers(); }
  SEQPAR_DEVICE float* matrix(int position) const { return numbers + position * mapNumbers(); }
  SEQPAR_DEVICE float* panel(int position, int i) const {
    return matrix(position) + matrixNumbers() + i * panelNumbers();
  }
};

template <class Memory, class Group, class Product>
class MatrixGatherLarge : private MatrixMaps<Memory, Group, Product> {
 public:
  /// The CTA processes the groups number, number + ctas, ... A panel must fit a ring. Of `memory` it uses `pairs`.
  SEQPAR_DEVICE MatrixGatherLarge(const PeerView& view, const MatrixScan& scan, int number, int ctas,
                                  const Group& group, const MapMemory& memory, const GatheredMaps& gathered)
      : Maps(scan, group, memory),
        number_(number),
        ctas_(ctas),
        gathered_(gathered),
        out_(view, number, group, *memory.out),
        in_(view, number, group, *memory.in) {}

  SEQPAR_DEVICE void run() {
    for (int position = 0; position < scan_.positions; ++position) {
      if (position != scan_.position) others_ |= 1U << scan_.order[position];
    }
    for (int at = number_; at < scan_.groups(); at += ctas_) {
      const PanelGroup panels = scan_.at(at);
      if (!exchange(panels)) return;
      apply(panels);
      this->hop(panels);
    }
    out_.finish();
    in_.finish();
  }

 private:
  using Maps = MatrixMaps<Memory, Group, Product>;
  using Maps::group_;
  using Maps::memory_;
  using Maps::needsExact_;
  using Maps::product_;
  using Maps::scan_;

  /// Calls receive(position, peer) for all other positions. Returns false on timeout; so do the functions below.
  template <class Receive>
  SEQPAR_DEVICE bool fromOthers(const Receive& receive) {
    for (int position = 0; position < scan_.positions; ++position) {
      if (position != scan_.position && !receive(position, scan_.order[position])) return false;
    }
    return true;
  }

  /// All positions send a panel before they receive those of the others, so no sender waits for more than that.
  SEQPAR_DEVICE bool exchange(const PanelGroup& panels) {
    const bool ownKeeps = !scan_.first() && !scan_.forgets(panels.head);
    keeps_ = 0;
    if (others_ != 0 && !this->sendKeeps(out_, others_, ownKeeps)) return false;
    const bool fine = fromOthers([&](int position, int peer) {
      bool keeps = false;
      if (!this->takeKeeps(in_, peer, keeps)) return false;
      keeps_ |= keeps ? 1U << position : 0U;
      return true;
    });
    if (!fine || !exchangeMatrices(panels, ownKeeps)) return false;
    if (scan_.first()) this->startFromInitial(panels);
    const bool through = scan_.first() && !scan_.forgets(panels.head) && scan_.initial != nullptr;
    for (int i = 0; i < panels.count; ++i) {
      if (others_ != 0 && !this->sendThrough(out_, others_, panels, i, through)) return false;
      const bool taken = fromOthers([&](int position, int peer) {
        return this->takePanel(in_, peer, scan_.wireType, [&](int fragment, const float(&numbers)[8]) {
          if (position > scan_.position) return;
          float* const to = gathered_.panel(position, i) + 8 * fragment;
          SEQPAR_UNROLL
          for (int n = 0; n < 8; ++n) to[n] = numbers[n];
        });
      });
      if (!taken) return false;
    }
    return true;
  }

  SEQPAR_DEVICE bool exchangeMatrices(const PanelGroup& panels, bool ownKeeps) {
    const MatrixView own = transitionOf(scan_, panels.head);
    for (int column = 0; column < this->matrixPanels(); ++column) {
      if (ownKeeps && !this->sendPanel(out_, others_, seqparFloat32, [&](int fragment, float(&numbers)[8]) {
            this->loadMatrixFragment(own, column, PanelFragment(fragment), numbers);
          })) {
        return false;
      }
      const bool taken = fromOthers([&](int position, int peer) {
        if ((keeps_ >> position & 1U) == 0) return true;
        return this->takePanel(in_, peer, seqparFloat32, [&](int fragment, const float(&numbers)[8]) {
          if (position > scan_.position) return;
          this->storeMatrixFragment(gathered_.matrix(position), column, PanelFragment(fragment), numbers);
        });
      });
      if (!taken) return false;
    }
    return true;
  }

  /// Sets the state to x of this position.
  SEQPAR_DEVICE void apply(const PanelGroup& panels) {
    if (scan_.first()) return;
    needsExact_ = 0;
    for (int i = 0; i < panels.count; ++i) {
      bool needsExact = false;
      for (int fragment = group_.thread(); fragment < fragmentsOf(scan_.dk); fragment += group_.threads()) {
        float numbers[8];
        load(0, i, fragment, numbers);
        needsExact |= splitFragment(this->state(i), PanelFragment(fragment), numbers);
      }
      needsExact_ |= group_.any(needsExact) ? 1U << i : 0U;
    }
    for (int position = 1; position < scan_.position; ++position) {
      const bool keeps = (keeps_ >> position & 1U) != 0;
      if (keeps) product_.load(this->inShared(gathered_.matrix(position)));
      this->replaceStates(panels, [&](int i, SplitPair* to, bool& needsExact) {
        const auto add = [&](int fragment, float(&numbers)[8]) {
          float s[8];
          load(position, i, fragment, s);
          SEQPAR_UNROLL
          for (int n = 0; n < 8; ++n) numbers[n] += s[n];
          needsExact |= splitFragment(to, PanelFragment(fragment), numbers);
        };
        if (keeps) {
          product_.multiply(group_, this->state(i), this->stateNeedsExact(i), add);
        } else {
          this->forZeros(add);
        }
        group_.sync();
        return true;
      });
    }
  }
  SEQPAR_DEVICE void load(int position, int i, int fragment, float (&numbers)[8]) const {
    const float* const from = gathered_.panel(position, i) + 8 * fragment;
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) numbers[n] = from[n];
  }

  int number_, ctas_;
  GatheredMaps gathered_;
  std::uint32_t others_ = 0, keeps_ = 0;  ///< peers; positions whose map depends on the incoming state
  OutCursor<Memory, Group> out_;
  InCursor<Memory, Group> in_;
};

}  // namespace seqpar
