// The product of a transition and a panel, in the shared memory of a lane. What multiplies is a class with
//   void load(const MatrixView&): the transition to come;
//   multiply(group, const SplitNumber* panel, bool odd, done): done(slot, numbers) for every slot of the product, each
//   on the
//     thread that has the slot; `odd` if some number of the panel was (see split()).
// Here is the plain one; matrix_tensor.cuh has the one for tensor cores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scan/matrix_panel.h"

/// Before a loop that is seldom run: its code stays small.
#ifdef __CUDACC__
#define SEQPAR_KEEP_LOOP _Pragma("unroll 1")
#else
#define SEQPAR_KEEP_LOOP
#endif

namespace seqpar {

/// A dk x dk matrix: element (i, j) is data[i * rowStride + j * columnStride].
struct MatrixView {
  const float* data = nullptr;
  std::size_t rowStride = 0, columnStride = 0;
  int dk = 0;
};

/// This rank's transition of a head, as it is applied.
SEQPAR_LANE MatrixView transitionOf(const MatrixScan& scan, int head) {
  const std::size_t dk = static_cast<std::size_t>(scan.dk);
  const float* const data = scan.transition + dk * dk * static_cast<std::size_t>(head);
  return scan.reverse ? MatrixView{data, 1, dk, scan.dk} : MatrixView{data, dk, 1, scan.dk};
}

/// A number as the sum of one with 11 digits and a rest.
struct alignas(8) SplitNumber {
  float high, low;
};

/// A panel of pairs lies by rows. The stride has a warp's loads meet all banks.
constexpr int kPairStride = kPanelColumns + 1;
SEQPAR_BOTH constexpr std::size_t pairsOf(int dk) {
  return static_cast<std::size_t>(slotsOf(dk)) / 32 * kPanelRows * kPairStride;
}

/// Rounds to 11 digits by adding half of the last one. True if that made or met an infinity or a NaN.
SEQPAR_LANE bool roundsToOdd(float value, float& rounded) {
  const std::uint32_t bits = asBits(value) + 0x1000U;
  rounded = asFloat(bits & 0xffffe000U);
  return (bits & 0x7f800000U) == 0x7f800000U;
}

/// high + low == value. An odd number, which is infinite, NaN or just below infinity, is all in `high`.
SEQPAR_LANE bool split(float value, SplitNumber& pair) {
  const bool odd = roundsToOdd(value, pair.high);
  if (odd) pair.high = value;
  pair.low = odd ? 0 : value - pair.high;
  return odd;
}

/// Splits a slot's numbers into the panel; true if any is odd.
SEQPAR_LANE bool splitSlot(SplitNumber* panel, PanelSlot slot, const float (&numbers)[8]) {
  bool odd = false;
  SEQPAR_UNROLL
  for (int i = 0; i < 8; ++i) {
    odd |= split(numbers[i], panel[slot.rowOf(i / 2) * kPairStride + slot.columnOf(i / 2) + i % 2]);
  }
  return odd;
}

SEQPAR_LANE void joinSlot(const SplitNumber* panel, PanelSlot slot, float (&numbers)[8]) {
  SEQPAR_UNROLL
  for (int i = 0; i < 8; ++i) {
    const SplitNumber& pair = panel[slot.rowOf(i / 2) * kPairStride + slot.columnOf(i / 2) + i % 2];
    numbers[i] = pair.high + pair.low;
  }
}

/// One slot of the product, number by number.
SEQPAR_LANE void multiplySlot(const MatrixView& a, const SplitNumber* panel, PanelSlot slot, float (&numbers)[8]) {
  for (float& number : numbers) number = 0;
  SEQPAR_KEEP_LOOP
  for (int k = 0; k < a.dk; ++k) {
    SEQPAR_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const int row = slot.rowOf(lower);
      if (row >= a.dk) continue;
      const float factor = a.data[row * a.rowStride + k * a.columnStride];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const SplitNumber& x = panel[k * kPairStride + slot.columnOf(i / 2 * 2) + i % 2];
        numbers[i / 2 * 4 + lower * 2 + i % 2] += factor * (x.high + x.low);
      }
    }
  }
}

class PlainProduct {
 public:
  SEQPAR_LANE void load(const MatrixView& a) { a_ = a; }

  template <class Group, class Done>
  SEQPAR_LANE void multiply(const Group& group, const SplitNumber* panel, bool, const Done& done) const {
    for (int slot = group.thread(); slot < slotsOf(a_.dk); slot += group.threads()) {
      float numbers[8];
      multiplySlot(a_, panel, PanelSlot(slot), numbers);
      done(slot, numbers);
    }
  }

 private:
  MatrixView a_;
};

}  // namespace seqpar
