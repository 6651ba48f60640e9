// A panel is 16 columns of a matrix with dk rows. It is processed in fragments of 8 elements, in the layout of an mma
// result, except that its rows i and i + 8 are neighbors in the matrix; 32 fragments are 16 rows. Rows and columns
// outside the matrix are zero. On the wire a fragment is two packets in fp32, or one packet in a 16-bit type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/arch/numbers.h"
#include "kernels/fifo.h"
#include "kernels/scan/matrix_plan.h"

namespace seqpar {

/// Converts an element of a 16-bit type.
SEQPAR_DEVICE float widen(std::uint32_t bits, int type) {
  return type == seqparBfloat16 ? bfloatToFloat(bits) : halfToFloat(bits);
}
/// Converts two elements, the first in the lower half.
SEQPAR_DEVICE void widenTwo(std::uint32_t bits, int type, float& first, float& second) {
  first = widen(bits & 0xffffU, type);
  second = widen(bits >> 16, type);
}
SEQPAR_DEVICE std::uint32_t narrowTwo(float first, float second, int type) {
  return type == seqparBfloat16 ? floatsToBfloats(first, second) : floatsToHalves(first, second);
}
SEQPAR_DEVICE std::uint16_t narrow(float value, int type) {
  return static_cast<std::uint16_t>(narrowTwo(value, 0, type) & 0xffffU);
}

/// Two adjacent floats in memory.
struct alignas(8) TwoFloats {
  float left, right;
};

/// The position of a fragment's elements in the panel.
struct PanelFragment {
  int row, column;  ///< of element 0

  SEQPAR_DEVICE explicit PanelFragment(int number)
      : row(number / 32 * kPanelRows + number % 32 / 4 * 2), column(number % 4 * 2) {}
  /// Row and column of elements 2 * pair and 2 * pair + 1, which are adjacent in a row.
  SEQPAR_DEVICE int rowOf(int pair) const { return row + pair % 2; }
  SEQPAR_DEVICE int columnOf(int pair) const { return column + pair / 2 * 8; }
};

SEQPAR_BOTH constexpr int fragmentsOf(int dk) {
  return (dk + kPanelRows - 1) / kPanelRows * 32;
}
SEQPAR_BOTH constexpr int packetsOf(int dk, int wireType) {
  return fragmentsOf(dk) * (wireType == seqparFloat32 ? 2 : 1);
}

/// A head's panel in a buffer of the caller, which may be null.
template <class Pointer>
struct CallerPanel {
  Pointer data;
  const MatrixScan& scan;
  int head, column;  ///< the panel's first column

  SEQPAR_DEVICE CallerPanel(Pointer buffer, const MatrixScan& problem, int ofHead, int panel)
      : data(buffer), scan(problem), head(ofHead), column(panel * kPanelColumns) {}
  SEQPAR_DEVICE std::size_t element(int row, int columnOfPanel) const {
    return (static_cast<std::size_t>(head) * scan.dk + row) * scan.dv + column + columnOfPanel;
  }
  SEQPAR_DEVICE bool has(int row, int columnOfPanel) const { return row < scan.dk && column + columnOfPanel < scan.dv; }
};

/// Storage of panels. Fast panels are fp32, also on the wire, paired, and have 16 whole rows and columns; their
/// matrices are aligned to four elements.
struct AnyPanels {
  static constexpr bool kFast = false;
};
struct FastPanels {
  static constexpr bool kFast = true;
};
SEQPAR_BOTH inline bool areFast(const MatrixScan& scan) {
  return scan.paired && scan.stateType == seqparFloat32 && scan.wireType == seqparFloat32 &&
         scan.dk % kPanelRows == 0 && scan.dv % kPanelColumns == 0 &&
         reinterpret_cast<std::uintptr_t>(scan.transition) % 16 == 0;
}

template <class Shape>
SEQPAR_DEVICE void loadFragment(const CallerPanel<const void*>& from, PanelFragment fragment, float (&numbers)[8]) {
  if (Shape::kFast) {
    for (float& number : numbers) number = 0;
    if (from.data == nullptr) return;
    const float* const data = static_cast<const float*>(from.data) + from.element(fragment.row, fragment.column);
    SEQPAR_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
      const std::size_t at = static_cast<std::size_t>(pair % 2) * from.scan.dv + pair / 2 * 8;
      const TwoFloats two = *reinterpret_cast<const TwoFloats*>(data + at);
      numbers[2 * pair] = two.left;
      numbers[2 * pair + 1] = two.right;
    }
    return;
  }
  const int type = from.scan.stateType;
  SEQPAR_UNROLL
  for (int pair = 0; pair < 4; ++pair) {
    const int row = fragment.rowOf(pair), column = fragment.columnOf(pair);
    float &left = numbers[2 * pair], &right = numbers[2 * pair + 1];
    left = right = 0;
    if (from.data == nullptr || !from.has(row, column)) continue;
    const std::size_t at = from.element(row, column);
    if (type == seqparFloat32) {
      const float* const data = static_cast<const float*>(from.data) + at;
      if (from.scan.paired) {
        const TwoFloats two = *reinterpret_cast<const TwoFloats*>(data);
        left = two.left;
        right = two.right;
      } else {
        left = data[0];
        if (from.has(row, column + 1)) right = data[1];
      }
    } else {
      const std::uint16_t* const data = static_cast<const std::uint16_t*>(from.data) + at;
      if (from.scan.paired) {
        widenTwo(*reinterpret_cast<const std::uint32_t*>(data), type, left, right);
      } else {
        left = widen(data[0], type);
        if (from.has(row, column + 1)) right = widen(data[1], type);
      }
    }
  }
}

template <class Shape>
SEQPAR_DEVICE void storeFragment(const CallerPanel<void*>& to, PanelFragment fragment, const float (&numbers)[8]) {
  if (to.data == nullptr) return;
  if (Shape::kFast) {
    float* const data = static_cast<float*>(to.data) + to.element(fragment.row, fragment.column);
    SEQPAR_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
      const std::size_t at = static_cast<std::size_t>(pair % 2) * to.scan.dv + pair / 2 * 8;
      *reinterpret_cast<TwoFloats*>(data + at) = TwoFloats{numbers[2 * pair], numbers[2 * pair + 1]};
    }
    return;
  }
  const int type = to.scan.stateType;
  SEQPAR_UNROLL
  for (int pair = 0; pair < 4; ++pair) {
    const int row = fragment.rowOf(pair), column = fragment.columnOf(pair);
    if (!to.has(row, column)) continue;
    const float left = numbers[2 * pair], right = numbers[2 * pair + 1];
    const std::size_t at = to.element(row, column);
    if (type == seqparFloat32) {
      float* const data = static_cast<float*>(to.data) + at;
      if (to.scan.paired) {
        *reinterpret_cast<TwoFloats*>(data) = TwoFloats{left, right};
      } else {
        data[0] = left;
        if (to.has(row, column + 1)) data[1] = right;
      }
    } else {
      std::uint16_t* const data = static_cast<std::uint16_t*>(to.data) + at;
      if (to.scan.paired) {
        *reinterpret_cast<std::uint32_t*>(data) = narrowTwo(left, right, type);
      } else {
        data[0] = narrow(left, type);
        if (to.has(row, column + 1)) data[1] = narrow(right, type);
      }
    }
  }
}

/// Stores a fragment into a panel; `base` is the panel's first packet.
template <class Shape, class Memory>
SEQPAR_DEVICE void putFragment(const Sender<Memory>& out, std::uint32_t base, int fragments, int fragment, int wireType,
                               const float (&numbers)[8]) {
  if (Shape::kFast || wireType == seqparFloat32) {
    SEQPAR_UNROLL
    for (int half = 0; half < 2; ++half) {
      LamportPacket packet;
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) packet.word[i] = sendable(asBits(numbers[4 * half + i]), kAbsentAsFloat);
      out.put(base + half * fragments + fragment, packet);
    }
  } else {
    LamportPacket packet;
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      packet.word[i] = sendable(narrowTwo(numbers[2 * i], numbers[2 * i + 1], wireType), kAbsentAsHalves);
    }
    out.put(base + fragment, packet);
  }
}

/// A fragment's packets as polled.
struct FragmentPackets {
  LamportPacket packet[2];
};

template <class Shape, class Memory>
SEQPAR_DEVICE FragmentPackets pollFragment(const Receiver<Memory>& in, std::uint32_t base, int fragments, int fragment,
                                           int wireType) {
  FragmentPackets seen;
  seen.packet[0] = in.poll(base + fragment);
  if (Shape::kFast || wireType == seqparFloat32) seen.packet[1] = in.poll(base + fragments + fragment);
  return seen;
}

/// Waits for a fragment; `seen` is the value that pollFragment() returned. Returns false on timeout.
template <class Shape, class Memory>
SEQPAR_DEVICE bool takeFragment(const Receiver<Memory>& in, std::uint32_t base, int fragments, int fragment,
                                int wireType, FragmentPackets& seen, float (&numbers)[8]) {
  if (!in.take(base + fragment, seen.packet[0])) return false;
  if (Shape::kFast || wireType == seqparFloat32) {
    if (!in.take(base + fragments + fragment, seen.packet[1])) return false;
    SEQPAR_UNROLL
    for (int i = 0; i < 8; ++i) numbers[i] = asFloat(seen.packet[i / 4].word[i % 4]);
  } else {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) widenTwo(seen.packet[0].word[i], wireType, numbers[2 * i], numbers[2 * i + 1]);
  }
  return true;
}

}  // namespace seqpar
