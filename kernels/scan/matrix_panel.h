// A panel is 16 columns of a matrix of dk rows. It is worked on in slots of 8 numbers, laid out as a warp holds the
// result of a tensor core product whose rows i and i + 8 are neighbours in the matrix; 32 slots are 16 rows. Rows and
// columns beyond the matrix are zeros. On the wire a slot is two lines of fp32, or one of a 16-bit type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "channel.h"
#include "scan/matrix_plan.h"
#include "scan/numbers.h"

namespace seqpar {

/// A number of a 16-bit type.
SEQPAR_LANE float widen(std::uint32_t bits, int type) {
  return type == seqparBfloat16 ? bfloatToFloat(bits) : halfToFloat(bits);
}
/// Two of them, the first in the lower half.
SEQPAR_LANE void widenTwo(std::uint32_t bits, int type, float& first, float& second) {
  first = widen(bits & 0xffffU, type);
  second = widen(bits >> 16, type);
}
SEQPAR_LANE std::uint32_t narrowTwo(float first, float second, int type) {
  return type == seqparBfloat16 ? floatsToBfloats(first, second) : floatsToHalves(first, second);
}
SEQPAR_LANE std::uint16_t narrow(float value, int type) {
  return static_cast<std::uint16_t>(narrowTwo(value, 0, type) & 0xffffU);
}

/// Two neighbours in memory.
struct alignas(8) TwoFloats {
  float left, right;
};

/// Where the numbers of a slot are in the panel.
struct PanelSlot {
  int row, column;  ///< of number 0

  SEQPAR_LANE explicit PanelSlot(int number)
      : row(number / 32 * kPanelRows + number % 32 / 4 * 2), column(number % 4 * 2) {}
  /// Numbers 2 * pair and 2 * pair + 1 are neighbours in this row, from this column.
  SEQPAR_LANE int rowOf(int pair) const { return row + pair % 2; }
  SEQPAR_LANE int columnOf(int pair) const { return column + pair / 2 * 8; }
};

SEQPAR_BOTH constexpr int slotsOf(int dk) {
  return (dk + kPanelRows - 1) / kPanelRows * 32;
}
SEQPAR_BOTH constexpr int linesOf(int dk, int wireType) {
  return slotsOf(dk) * (wireType == seqparFloat32 ? 2 : 1);
}

/// A head's panel in a caller's buffer, which may be null.
template <class Pointer>
struct CallerPanel {
  Pointer data;
  const MatrixScan& scan;
  int head, column;  ///< the first one

  SEQPAR_LANE CallerPanel(Pointer buffer, const MatrixScan& problem, int ofHead, int panel)
      : data(buffer), scan(problem), head(ofHead), column(panel * kPanelColumns) {}
  SEQPAR_LANE std::size_t element(int row, int columnOfPanel) const {
    return (static_cast<std::size_t>(head) * scan.dk + row) * scan.dv + column + columnOfPanel;
  }
  SEQPAR_LANE bool has(int row, int columnOfPanel) const { return row < scan.dk && column + columnOfPanel < scan.dv; }
};

/// How panels lie. Plain ones are of fp32, also on the wire, paired, and 16 whole rows and columns each; their matrices
/// are aligned to four numbers.
struct AnyPanels {
  static constexpr bool kPlain = false;
};
struct PlainPanels {
  static constexpr bool kPlain = true;
};
SEQPAR_BOTH inline bool arePlain(const MatrixScan& scan) {
  return scan.paired && scan.stateType == seqparFloat32 && scan.wireType == seqparFloat32 &&
         scan.dk % kPanelRows == 0 && scan.dv % kPanelColumns == 0 &&
         reinterpret_cast<std::uintptr_t>(scan.transition) % 16 == 0;
}

template <class Shape>
SEQPAR_LANE void loadSlot(const CallerPanel<const void*>& from, PanelSlot slot, float (&numbers)[8]) {
  if (Shape::kPlain) {
    for (float& number : numbers) number = 0;
    if (from.data == nullptr) return;
    const float* const data = static_cast<const float*>(from.data) + from.element(slot.row, slot.column);
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
    const int row = slot.rowOf(pair), column = slot.columnOf(pair);
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
SEQPAR_LANE void storeSlot(const CallerPanel<void*>& to, PanelSlot slot, const float (&numbers)[8]) {
  if (to.data == nullptr) return;
  if (Shape::kPlain) {
    float* const data = static_cast<float*>(to.data) + to.element(slot.row, slot.column);
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
    const int row = slot.rowOf(pair), column = slot.columnOf(pair);
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

/// Puts a slot into the panel whose lines begin at `base`.
template <class Shape, class Memory>
SEQPAR_LANE void putSlot(const Sender<Memory>& out, std::uint32_t base, int slots, int slot, int wireType,
                         const float (&numbers)[8]) {
  if (Shape::kPlain || wireType == seqparFloat32) {
    SEQPAR_UNROLL
    for (int half = 0; half < 2; ++half) {
      Line line;
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) line.word[i] = sendable(asBits(numbers[4 * half + i]), kAbsentAsFloat);
      out.put(base + half * slots + slot, line);
    }
  } else {
    Line line;
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      line.word[i] = sendable(narrowTwo(numbers[2 * i], numbers[2 * i + 1], wireType), kAbsentAsHalves);
    }
    out.put(base + slot, line);
  }
}

/// A slot's lines as they were when they were looked at.
struct SlotLines {
  Line line[2];
};

template <class Shape, class Memory>
SEQPAR_LANE SlotLines lookAtSlot(const Receiver<Memory>& in, std::uint32_t base, int slots, int slot, int wireType) {
  SlotLines seen;
  seen.line[0] = in.look(base + slot);
  if (Shape::kPlain || wireType == seqparFloat32) seen.line[1] = in.look(base + slots + slot);
  return seen;
}

/// Waits for a slot, of which `seen` is what lookAtSlot() gave. False: gave up.
template <class Shape, class Memory>
SEQPAR_LANE bool takeSlot(const Receiver<Memory>& in, std::uint32_t base, int slots, int slot, int wireType,
                          SlotLines& seen, float (&numbers)[8]) {
  if (!in.take(base + slot, seen.line[0])) return false;
  if (Shape::kPlain || wireType == seqparFloat32) {
    if (!in.take(base + slots + slot, seen.line[1])) return false;
    SEQPAR_UNROLL
    for (int i = 0; i < 8; ++i) numbers[i] = asFloat(seen.line[i / 4].word[i % 4]);
  } else {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) widenTwo(seen.line[0].word[i], wireType, numbers[2 * i], numbers[2 * i + 1]);
  }
  return true;
}

}  // namespace seqpar
