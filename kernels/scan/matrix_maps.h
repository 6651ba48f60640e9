// Maps of MATRIX positions in messages, and what a CTA does with them. A group's map is a line that says whether it
// keeps anything of what is before it; if so, the panels of its matrix, in fp32; and the panels of its state. An
// absolute map, which begins at position 0, is the panels of its state alone.
#pragma once

#include "scan/matrix_ports.h"
#include "scan/matrix_product.h"

namespace seqpar {

/// Shared memory of a CTA that works on maps: panels of pairs, one more than a group has and one for what goes through
/// a matrix by itself, and matrices.
struct MapMemory {
  SplitPair* pairs;
  float* matrix[2];  ///< the second is for DOUBLING
  PortPositions *out, *in;
};

/// At most so many lines of the map of so many panels, and of as many x, are in one of the port's rings, which take
/// panels by turns. A peer who has taken everything has room for kSureLines.
SEQPAR_BOTH constexpr std::uint32_t mapLines(int dk, int panels, int ways) {
  const int pieces = (dk + kPanelColumns - 1) / kPanelColumns + 2 * panels;
  return static_cast<std::uint32_t>(1 + (pieces + ways - 1) / ways * linesOf(dk, seqparFloat32));
}

/// Numbers from one row of a matrix in shared memory to the next; rows are aligned to 16 bytes.
SEQPAR_BOTH constexpr int matrixStride(int dk) {
  return (dk + 3) / 4 * 4 + 4;
}

template <class Memory, class Group, class Product>
class MatrixMaps {
 public:
  using Out = OutPort<Memory, Group>;
  using In = InPort<Memory, Group>;

  SEQPAR_LANE MatrixMaps(const MatrixScan& scan, const Group& group, const MapMemory& memory)
      : scan_(scan), group_(group), memory_(memory), slots_(slotsOf(scan.dk)) {}

  // What arrives --------------------------------------------------------------------------------------------------

  /// The state becomes an absolute map. False: gave up, here and below.
  SEQPAR_LANE bool takeAbsolute(In& in, int peer, const PanelGroup& panels) {
    odd_ = 0;
    for (int i = 0; i < panels.count; ++i) {
      bool odd = false;
      const bool fine = takePanel(in, peer, scan_.wireType, [&](int slot, const float(&x)[8]) {
        odd |= splitSlot(state(i), PanelSlot(slot), x);
      });
      if (!fine) return false;
      odd_ |= group_.any(odd) ? 1U << i : 0U;
    }
    return true;
  }

  /// A peer's map is applied to the state.
  SEQPAR_LANE bool takeThrough(In& in, int peer, const PanelGroup& panels) {
    bool keeps = false;
    if (!takeKeeps(in, peer, keeps)) return false;
    if (keeps && !takeMatrix(in, peer, memory_.matrix[0])) return false;
    if (keeps) product_.load(inShared(memory_.matrix[0]));
    return replaceStates(panels, [&](int i, SplitPair* to, bool& odd) {
      bool late = false;
      const Receiver<Memory> from = in.receiver(peer);
      const auto add = [&](int slot, float(&numbers)[8]) {
        float s[8];
        late = late || !take(from, slot, scan_.wireType, s);
        for (int n = 0; !late && n < 8; ++n) numbers[n] += s[n];
        odd |= splitSlot(to, PanelSlot(slot), numbers);
      };
      if (keeps) {
        product_.multiply(group_, state(i), isOdd(i), add);
      } else {
        forZeros(add);
      }
      return in.end(late, peer, linesOf(scan_.dk, scan_.wireType));
    });
  }

  /// The map, not absolute, of a peer whom nobody here wants.
  SEQPAR_LANE bool discard(In& in, int peer, const PanelGroup& panels) {
    bool keeps = false;
    if (!takeKeeps(in, peer, keeps)) return false;
    const auto ignore = [](int, const float(&)[8]) {};
    for (int column = 0; keeps && column < matrixPanels(); ++column) {
      if (!takePanel(in, peer, seqparFloat32, ignore)) return false;
    }
    for (int i = 0; i < panels.count; ++i) {
      if (!takePanel(in, peer, scan_.wireType, ignore)) return false;
    }
    return true;
  }

  // What is sent --------------------------------------------------------------------------------------------------

  /// This rank's own map.
  SEQPAR_LANE bool sendOwn(Out& out, std::uint32_t to, const PanelGroup& panels) {
    if (scan_.first()) {
      startFromInitial(panels);
      for (int i = 0; i < panels.count; ++i) {
        if (!sendThrough(out, to, panels, i, !scan_.forgets(panels.head) && scan_.initial != nullptr)) return false;
      }
      return true;
    }
    const bool keeps = !scan_.forgets(panels.head);
    if (!sendKeeps(out, to, keeps)) return false;
    const MatrixView own = transitionOf(scan_, panels.head);
    if (keeps && !sendMatrix(out, to, own)) return false;
    for (int i = 0; i < panels.count; ++i) {
      if (!sendThrough(out, to, panels, i, false)) return false;
    }
    return true;
  }

  /// The state, as an absolute map or as x.
  SEQPAR_LANE bool sendState(Out& out, std::uint32_t to, const PanelGroup& panels) {
    for (int i = 0; i < panels.count; ++i) {
      const bool fine = sendPanel(out, to, scan_.wireType,
                                  [&](int slot, float(&numbers)[8]) { joinSlot(state(i), PanelSlot(slot), numbers); });
      if (!fine) return false;
    }
    return true;
  }

  // The caller's outputs ------------------------------------------------------------------------------------------

  /// The state becomes x_0.
  SEQPAR_LANE void startFromInitial(const PanelGroup& panels) {
    odd_ = 0;
    for (int i = 0; i < panels.count; ++i) {
      bool odd = false;
      for (int slot = group_.thread(); slot < slots_; slot += group_.threads()) {
        float x[8];
        loadSlot<AnyPanels>(own(scan_.initial, panels, i), PanelSlot(slot), x);
        odd |= splitSlot(state(i), PanelSlot(slot), x);
      }
      odd_ |= group_.any(odd) ? 1U << i : 0U;
    }
  }

  /// The state is x of this position: writes prefix and total.
  SEQPAR_LANE void hop(const PanelGroup& panels) {
    const bool resets = scan_.resets[panels.head];
    const bool through = !scan_.forgets(panels.head) && !(scan_.first() && scan_.initial == nullptr);
    if (through && scan_.total != nullptr) product_.load(transitionOf(scan_, panels.head));
    for (int i = 0; i < panels.count; ++i) {
      const auto write = [&](int slot, float(&numbers)[8]) {
        float s[8], x[8] = {};
        loadSlot<AnyPanels>(own(scan_.state, panels, i), PanelSlot(slot), s);
        for (int n = 0; n < 8; ++n) numbers[n] += s[n];
        if (!resets) joinSlot(state(i), PanelSlot(slot), x);
        storeSlot<AnyPanels>(own(scan_.total, panels, i), PanelSlot(slot), numbers);
        storeSlot<AnyPanels>(own(scan_.prefix, panels, i), PanelSlot(slot), x);
      };
      if (through && scan_.total != nullptr) {
        product_.multiply(group_, state(i), isOdd(i), write);
      } else {
        forZeros(write);
      }
    }
    group_.sync();
  }

 protected:
  SEQPAR_LANE CallerPanel<const void*> own(const void* data, const PanelGroup& panels, int i) const {
    return {data, scan_, panels.head, panels.first + i};
  }
  SEQPAR_LANE CallerPanel<void*> own(void* data, const PanelGroup& panels, int i) const {
    return {data, scan_, panels.head, panels.first + i};
  }
  SEQPAR_LANE int matrixPanels() const { return (scan_.dk + kPanelColumns - 1) / kPanelColumns; }
  SEQPAR_LANE MatrixView inShared(const float* matrix) const {
    return {matrix, static_cast<std::size_t>(matrixStride(scan_.dk)), 1, scan_.dk};
  }

  /// Panel i of the state. There is one place more than panels, which is always the one before panel 0's.
  SEQPAR_LANE SplitPair* state(int i) const { return place((turn_ + i) % (scan_.group + 1)); }
  SEQPAR_LANE SplitPair* place(int number) const { return memory_.pairs + number * pairsOf(scan_.dk); }
  /// For a panel that goes through a matrix by itself.
  SEQPAR_LANE SplitPair* passing() const { return place(scan_.group + 1); }
  SEQPAR_LANE bool isOdd(int i) const { return (odd_ >> i & 1U) != 0; }

  /// Gives each panel of the state a new value: make(i, place for it, odd) ends with a barrier, after which the old one
  /// is free.
  template <class Make>
  SEQPAR_LANE bool replaceStates(const PanelGroup& panels, const Make& make) {
    std::uint32_t after = 0;
    for (int i = 0; i < panels.count; ++i) {
      bool odd = false;
      if (!make(i, place((turn_ + i + scan_.group) % (scan_.group + 1)), odd)) return false;
      after |= group_.any(odd) ? 1U << i : 0U;
    }
    turn_ = (turn_ + scan_.group) % (scan_.group + 1);
    odd_ = after;
    return true;
  }

  template <class Do>
  SEQPAR_LANE void forZeros(const Do& act) const {
    for (int slot = group_.thread(); slot < slots_; slot += group_.threads()) {
      float zeros[8] = {};
      act(slot, zeros);
    }
  }

  SEQPAR_LANE bool take(const Receiver<Memory>& from, int slot, int type, float (&numbers)[8]) const {
    SlotLines seen = lookAtSlot<AnyPanels>(from, 0, slots_, slot, type);
    return takeSlot<AnyPanels>(from, 0, slots_, slot, type, seen, numbers);
  }

  /// store(slot, numbers) on the thread that has the slot.
  template <class Store>
  SEQPAR_LANE bool takePanel(In& in, int peer, int type, const Store& store) {
    const Receiver<Memory> from = in.receiver(peer);
    bool late = false;
    for (int slot = group_.thread(); slot < slots_ && !late; slot += group_.threads()) {
      float numbers[8];
      late = !take(from, slot, type, numbers);
      if (!late) store(slot, numbers);
    }
    return in.end(late, peer, linesOf(scan_.dk, type));
  }

  SEQPAR_LANE bool takeKeeps(In& in, int peer, bool& keeps) {
    bool late = false;
    bool mine = false;
    if (group_.thread() == 0) {
      const Receiver<Memory> from = in.receiver(peer);
      Line line = from.look(0);
      late = !from.take(0, line);
      mine = !late && line.word[0] == 1;
    }
    keeps = group_.any(mine);
    return in.end(late, peer, 1);
  }

  SEQPAR_LANE bool takeMatrix(In& in, int peer, float* matrix) {
    for (int column = 0; column < matrixPanels(); ++column) {
      const bool fine = takePanel(in, peer, seqparFloat32, [&](int slot, const float(&numbers)[8]) {
        storeMatrixSlot(matrix, column, PanelSlot(slot), numbers);
      });
      if (!fine) return false;
    }
    return true;
  }

  SEQPAR_LANE void storeMatrixSlot(float* matrix, int panel, PanelSlot slot, const float (&numbers)[8]) const {
    for (int n = 0; n < 8; ++n) {
      const int row = slot.rowOf(n / 2), column = panel * kPanelColumns + slot.columnOf(n / 2) + n % 2;
      if (row < scan_.dk && column < scan_.dk) matrix[row * matrixStride(scan_.dk) + column] = numbers[n];
    }
  }
  SEQPAR_LANE void loadMatrixSlot(const MatrixView& matrix, int panel, PanelSlot slot, float (&numbers)[8]) const {
    for (int n = 0; n < 8; ++n) {
      const int row = slot.rowOf(n / 2), column = panel * kPanelColumns + slot.columnOf(n / 2) + n % 2;
      const bool inside = row < scan_.dk && column < scan_.dk;
      numbers[n] = inside ? matrix.data[row * matrix.rowStride + column * matrix.columnStride] : 0;
    }
  }

  /// load(slot, numbers) gives what is sent to all peers in `to`.
  template <class Load>
  SEQPAR_LANE bool sendPanel(Out& out, std::uint32_t to, int type, const Load& load) {
    const auto lines = static_cast<std::uint32_t>(linesOf(scan_.dk, type));
    if (!out.begin(to, lines)) return false;
    for (int slot = group_.thread(); slot < slots_; slot += group_.threads()) {
      float numbers[8];
      load(slot, numbers);
      put(out, to, slot, type, numbers);
    }
    out.end(to, lines);
    return true;
  }

  SEQPAR_LANE void put(const Out& out, std::uint32_t to, int slot, int type, const float (&numbers)[8]) const {
    for (int peer = 0; to >> peer != 0; ++peer) {
      if ((to >> peer & 1U) != 0) putSlot<AnyPanels>(out.sender(peer), 0, slots_, slot, type, numbers);
      if (peer == kMostPeers - 1) break;
    }
  }

  SEQPAR_LANE bool sendKeeps(Out& out, std::uint32_t to, bool keeps) {
    if (!out.begin(to, 1)) return false;
    for (int peer = group_.thread(); peer < kMostPeers; peer += group_.threads()) {
      if ((to >> peer & 1U) != 0) out.sender(peer).put(0, Line{{keeps ? 1U : 0U, 0, 0, 0}});
    }
    out.end(to, 1);
    return true;
  }

  SEQPAR_LANE bool sendMatrix(Out& out, std::uint32_t to, const MatrixView& matrix) {
    for (int column = 0; column < matrixPanels(); ++column) {
      const bool fine = sendPanel(out, to, seqparFloat32, [&](int slot, float(&numbers)[8]) {
        loadMatrixSlot(matrix, column, PanelSlot(slot), numbers);
      });
      if (!fine) return false;
    }
    return true;
  }

  /// Panel i of S, or of A x + S with the state for x.
  SEQPAR_LANE bool sendThrough(Out& out, std::uint32_t to, const PanelGroup& panels, int i, bool through) {
    const auto lines = static_cast<std::uint32_t>(linesOf(scan_.dk, scan_.wireType));
    if (!out.begin(to, lines)) return false;
    const auto add = [&](int slot, float(&numbers)[8]) {
      float s[8];
      loadSlot<AnyPanels>(own(scan_.state, panels, i), PanelSlot(slot), s);
      for (int n = 0; n < 8; ++n) numbers[n] += s[n];
      put(out, to, slot, scan_.wireType, numbers);
    };
    if (through) {
      if (i == 0) product_.load(transitionOf(scan_, panels.head));
      product_.multiply(group_, state(i), isOdd(i), add);
    } else {
      forZeros(add);
    }
    out.end(to, lines);
    return true;
  }

  const MatrixScan& scan_;
  const Group& group_;
  MapMemory memory_;
  int slots_;
  Product product_;
  int turn_ = 0;
  std::uint32_t odd_ = 0;  ///< a bit for each panel of the state
};

}  // namespace seqpar
