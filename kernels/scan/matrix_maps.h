// Messages with the maps of MATRIX positions, and a CTA's operations on them. A group's map is a packet that says
// whether the map depends on the incoming state; if so, the panels of its matrix, in fp32; and the panels of its state.
// An absolute map, which starts at position 0, consists of the panels of its state only.
#pragma once

#include "kernels/scan/matrix_cursors.h"
#include "kernels/scan/matrix_product.h"

namespace seqpar {

/// Shared memory of a CTA that works on maps: panels of pairs (one per panel of a group, one spare, and one for a panel
/// that is multiplied separately) and matrices.
struct MapMemory {
  SplitPair* pairs;
  float* matrix[2];  ///< the second is for DOUBLING
  CursorPositions *out, *in;
};

/// Upper bound of the packets of a map of `panels` panels, and of as many panels of x, in one of the cursor's rings,
/// which alternate by panel. A peer that has read everything has space for kSurePackets.
SEQPAR_BOTH constexpr std::uint32_t mapPackets(int dk, int panels, int ways) {
  const int pieces = (dk + kPanelColumns - 1) / kPanelColumns + 2 * panels;
  return static_cast<std::uint32_t>(1 + (pieces + ways - 1) / ways * packetsOf(dk, seqparFloat32));
}

/// Stride, in elements, of the rows of a matrix in shared memory; rows are aligned to 16 bytes.
SEQPAR_BOTH constexpr int matrixStride(int dk) {
  return (dk + 3) / 4 * 4 + 4;
}

template <class Memory, class Group, class Product>
class MatrixMaps {
 public:
  using Out = OutCursor<Memory, Group>;
  using In = InCursor<Memory, Group>;

  SEQPAR_DEVICE MatrixMaps(const MatrixScan& scan, const Group& group, const MapMemory& memory)
      : scan_(scan), group_(group), memory_(memory), fragments_(fragmentsOf(scan.dk)) {}

  // Receiving ------------------------------------------------------------------------------------------------------

  /// Receives an absolute map into the state. Returns false on timeout; so do the functions below.
  SEQPAR_DEVICE bool takeAbsolute(In& in, int peer, const PanelGroup& panels) {
    needsExact_ = 0;
    for (int i = 0; i < panels.count; ++i) {
      bool needsExact = false;
      const bool fine = takePanel(in, peer, scan_.wireType, [&](int fragment, const float(&x)[8]) {
        needsExact |= splitFragment(state(i), PanelFragment(fragment), x);
      });
      if (!fine) return false;
      needsExact_ |= group_.any(needsExact) ? 1U << i : 0U;
    }
    return true;
  }

  /// Applies a peer's map to the state.
  SEQPAR_DEVICE bool takeThrough(In& in, int peer, const PanelGroup& panels) {
    bool keeps = false;
    if (!takeKeeps(in, peer, keeps)) return false;
    if (keeps && !takeMatrix(in, peer, memory_.matrix[0])) return false;
    if (keeps) product_.load(inShared(memory_.matrix[0]));
    return replaceStates(panels, [&](int i, SplitPair* to, bool& needsExact) {
      bool late = false;
      const Receiver<Memory> from = in.receiver(peer);
      const auto add = [&](int fragment, float(&numbers)[8]) {
        float s[8];
        late = late || !take(from, fragment, scan_.wireType, s);
        for (int n = 0; !late && n < 8; ++n) numbers[n] += s[n];
        needsExact |= splitFragment(to, PanelFragment(fragment), numbers);
      };
      if (keeps) {
        product_.multiply(group_, state(i), stateNeedsExact(i), add);
      } else {
        forZeros(add);
      }
      return in.end(late, peer, packetsOf(scan_.dk, scan_.wireType));
    });
  }

  /// Receives and drops the (relative) map of a peer that no rank on this node reads.
  SEQPAR_DEVICE bool discard(In& in, int peer, const PanelGroup& panels) {
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

  // Sending --------------------------------------------------------------------------------------------------------

  /// Sends this rank's own map.
  SEQPAR_DEVICE bool sendOwn(Out& out, std::uint32_t to, const PanelGroup& panels) {
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

  /// Sends the state, as an absolute map or as x.
  SEQPAR_DEVICE bool sendState(Out& out, std::uint32_t to, const PanelGroup& panels) {
    for (int i = 0; i < panels.count; ++i) {
      const bool fine = sendPanel(out, to, scan_.wireType, [&](int fragment, float(&numbers)[8]) {
        joinFragment(state(i), PanelFragment(fragment), numbers);
      });
      if (!fine) return false;
    }
    return true;
  }

  // The caller's buffers -------------------------------------------------------------------------------------------

  /// Sets the state to x_0.
  SEQPAR_DEVICE void startFromInitial(const PanelGroup& panels) {
    needsExact_ = 0;
    for (int i = 0; i < panels.count; ++i) {
      bool needsExact = false;
      for (int fragment = group_.thread(); fragment < fragments_; fragment += group_.threads()) {
        float x[8];
        loadFragment<AnyPanels>(own(scan_.initial, panels, i), PanelFragment(fragment), x);
        needsExact |= splitFragment(state(i), PanelFragment(fragment), x);
      }
      needsExact_ |= group_.any(needsExact) ? 1U << i : 0U;
    }
  }

  /// Writes prefix and total; the state is x of this position.
  SEQPAR_DEVICE void hop(const PanelGroup& panels) {
    const bool resets = scan_.resets[panels.head];
    const bool through = !scan_.forgets(panels.head) && !(scan_.first() && scan_.initial == nullptr);
    if (through && scan_.total != nullptr) product_.load(transitionOf(scan_, panels.head));
    for (int i = 0; i < panels.count; ++i) {
      const auto write = [&](int fragment, float(&numbers)[8]) {
        float s[8], x[8] = {};
        loadFragment<AnyPanels>(own(scan_.state, panels, i), PanelFragment(fragment), s);
        for (int n = 0; n < 8; ++n) numbers[n] += s[n];
        if (!resets) joinFragment(state(i), PanelFragment(fragment), x);
        storeFragment<AnyPanels>(own(scan_.total, panels, i), PanelFragment(fragment), numbers);
        storeFragment<AnyPanels>(own(scan_.prefix, panels, i), PanelFragment(fragment), x);
      };
      if (through && scan_.total != nullptr) {
        product_.multiply(group_, state(i), stateNeedsExact(i), write);
      } else {
        forZeros(write);
      }
    }
    group_.sync();
  }

 protected:
  SEQPAR_DEVICE CallerPanel<const void*> own(const void* data, const PanelGroup& panels, int i) const {
    return {data, scan_, panels.head, panels.first + i};
  }
  SEQPAR_DEVICE CallerPanel<void*> own(void* data, const PanelGroup& panels, int i) const {
    return {data, scan_, panels.head, panels.first + i};
  }
  SEQPAR_DEVICE int matrixPanels() const { return (scan_.dk + kPanelColumns - 1) / kPanelColumns; }
  SEQPAR_DEVICE MatrixView inShared(const float* matrix) const {
    return {matrix, static_cast<std::size_t>(matrixStride(scan_.dk)), 1, scan_.dk};
  }

  /// Panel i of the state. The buffer has one panel more; the spare one always precedes panel 0.
  SEQPAR_DEVICE SplitPair* state(int i) const { return place((turn_ + i) % (scan_.group + 1)); }
  SEQPAR_DEVICE SplitPair* place(int number) const { return memory_.pairs + number * pairsOf(scan_.dk); }
  /// Buffer of a panel that is multiplied separately.
  SEQPAR_DEVICE SplitPair* passing() const { return place(scan_.group + 1); }
  SEQPAR_DEVICE bool stateNeedsExact(int i) const { return (needsExact_ >> i & 1U) != 0; }

  /// Replaces each panel of the state: make(i, buffer, needsExact) ends with a barrier; afterwards the old panel is
  /// free.
  template <class Make>
  SEQPAR_DEVICE bool replaceStates(const PanelGroup& panels, const Make& make) {
    std::uint32_t after = 0;
    for (int i = 0; i < panels.count; ++i) {
      bool needsExact = false;
      if (!make(i, place((turn_ + i + scan_.group) % (scan_.group + 1)), needsExact)) return false;
      after |= group_.any(needsExact) ? 1U << i : 0U;
    }
    turn_ = (turn_ + scan_.group) % (scan_.group + 1);
    needsExact_ = after;
    return true;
  }

  template <class Do>
  SEQPAR_DEVICE void forZeros(const Do& act) const {
    for (int fragment = group_.thread(); fragment < fragments_; fragment += group_.threads()) {
      float zeros[8] = {};
      act(fragment, zeros);
    }
  }

  SEQPAR_DEVICE bool take(const Receiver<Memory>& from, int fragment, int type, float (&numbers)[8]) const {
    FragmentPackets seen = pollFragment<AnyPanels>(from, 0, fragments_, fragment, type);
    return takeFragment<AnyPanels>(from, 0, fragments_, fragment, type, seen, numbers);
  }

  /// Calls store(fragment, numbers) on the thread that has the fragment.
  template <class Store>
  SEQPAR_DEVICE bool takePanel(In& in, int peer, int type, const Store& store) {
    const Receiver<Memory> from = in.receiver(peer);
    bool late = false;
    for (int fragment = group_.thread(); fragment < fragments_ && !late; fragment += group_.threads()) {
      float numbers[8];
      late = !take(from, fragment, type, numbers);
      if (!late) store(fragment, numbers);
    }
    return in.end(late, peer, packetsOf(scan_.dk, type));
  }

  SEQPAR_DEVICE bool takeKeeps(In& in, int peer, bool& keeps) {
    bool late = false;
    bool mine = false;
    if (group_.thread() == 0) {
      const Receiver<Memory> from = in.receiver(peer);
      LamportPacket packet = from.poll(0);
      late = !from.take(0, packet);
      mine = !late && packet.word[0] == 1;
    }
    keeps = group_.any(mine);
    return in.end(late, peer, 1);
  }

  SEQPAR_DEVICE bool takeMatrix(In& in, int peer, float* matrix) {
    for (int column = 0; column < matrixPanels(); ++column) {
      const bool fine = takePanel(in, peer, seqparFloat32, [&](int fragment, const float(&numbers)[8]) {
        storeMatrixFragment(matrix, column, PanelFragment(fragment), numbers);
      });
      if (!fine) return false;
    }
    return true;
  }

  SEQPAR_DEVICE void storeMatrixFragment(float* matrix, int panel, PanelFragment fragment,
                                         const float (&numbers)[8]) const {
    for (int n = 0; n < 8; ++n) {
      const int row = fragment.rowOf(n / 2), column = panel * kPanelColumns + fragment.columnOf(n / 2) + n % 2;
      if (row < scan_.dk && column < scan_.dk) matrix[row * matrixStride(scan_.dk) + column] = numbers[n];
    }
  }
  SEQPAR_DEVICE void loadMatrixFragment(const MatrixView& matrix, int panel, PanelFragment fragment,
                                        float (&numbers)[8]) const {
    for (int n = 0; n < 8; ++n) {
      const int row = fragment.rowOf(n / 2), column = panel * kPanelColumns + fragment.columnOf(n / 2) + n % 2;
      const bool inside = row < scan_.dk && column < scan_.dk;
      numbers[n] = inside ? matrix.data[row * matrix.rowStride + column * matrix.columnStride] : 0;
    }
  }

  /// load(fragment, numbers) returns the data for all peers in `to`.
  template <class Load>
  SEQPAR_DEVICE bool sendPanel(Out& out, std::uint32_t to, int type, const Load& load) {
    const auto packets = static_cast<std::uint32_t>(packetsOf(scan_.dk, type));
    if (!out.begin(to, packets)) return false;
    for (int fragment = group_.thread(); fragment < fragments_; fragment += group_.threads()) {
      float numbers[8];
      load(fragment, numbers);
      put(out, to, fragment, type, numbers);
    }
    out.end(to, packets);
    return true;
  }

  SEQPAR_DEVICE void put(const Out& out, std::uint32_t to, int fragment, int type, const float (&numbers)[8]) const {
    for (int peer = 0; to >> peer != 0; ++peer) {
      if ((to >> peer & 1U) != 0) putFragment<AnyPanels>(out.sender(peer), 0, fragments_, fragment, type, numbers);
      if (peer == kMostPeers - 1) break;
    }
  }

  SEQPAR_DEVICE bool sendKeeps(Out& out, std::uint32_t to, bool keeps) {
    if (!out.begin(to, 1)) return false;
    for (int peer = group_.thread(); peer < kMostPeers; peer += group_.threads()) {
      if ((to >> peer & 1U) != 0) out.sender(peer).put(0, LamportPacket{{keeps ? 1U : 0U, 0, 0, 0}});
    }
    out.end(to, 1);
    return true;
  }

  SEQPAR_DEVICE bool sendMatrix(Out& out, std::uint32_t to, const MatrixView& matrix) {
    for (int column = 0; column < matrixPanels(); ++column) {
      const bool fine = sendPanel(out, to, seqparFloat32, [&](int fragment, float(&numbers)[8]) {
        loadMatrixFragment(matrix, column, PanelFragment(fragment), numbers);
      });
      if (!fine) return false;
    }
    return true;
  }

  /// Sends panel i of S, or of A x + S, where the state is x.
  SEQPAR_DEVICE bool sendThrough(Out& out, std::uint32_t to, const PanelGroup& panels, int i, bool through) {
    const auto packets = static_cast<std::uint32_t>(packetsOf(scan_.dk, scan_.wireType));
    if (!out.begin(to, packets)) return false;
    const auto add = [&](int fragment, float(&numbers)[8]) {
      float s[8];
      loadFragment<AnyPanels>(own(scan_.state, panels, i), PanelFragment(fragment), s);
      for (int n = 0; n < 8; ++n) numbers[n] += s[n];
      put(out, to, fragment, scan_.wireType, numbers);
    };
    if (through) {
      if (i == 0) product_.load(transitionOf(scan_, panels.head));
      product_.multiply(group_, state(i), stateNeedsExact(i), add);
    } else {
      forZeros(add);
    }
    out.end(to, packets);
    return true;
  }

  const MatrixScan& scan_;
  const Group& group_;
  MapMemory memory_;
  int fragments_;
  Product product_;
  int turn_ = 0;
  std::uint32_t needsExact_ = 0;  ///< a bit for each panel of the state
};

}  // namespace seqpar
