// The product of a transition and a panel, in the shared memory of a lane. What multiplies is a class with
//   void load(const MatrixView&): the transition to come;
//   multiply(group, const SplitPair* panel, bool odd, done): done(slot, numbers) for every slot of the product, each
//   on the thread that has the slot; `odd` if some number of the panel was (see split()).
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
struct SplitNumber {
  float high, low;
};

/// Two numbers of a column, in rows 2 i and 2 i + 1, as one load of a thread that multiplies.
struct alignas(16) SplitPair {
  float high[2], low[2];
};

/// Pairs of a panel, by pieces of 8 rows and 8 columns that a warp loads at once.
SEQPAR_BOTH constexpr std::size_t pairsOf(int dk) {
  return static_cast<std::size_t>(slotsOf(dk)) * 4;
}
constexpr int kPairsOfPiece = 32;
/// Of 16 rows of a panel that has one half, 8 columns, or both.
SEQPAR_BOTH constexpr int pairsOfRows(int halves) {
  return 2 * halves * kPairsOfPiece;
}

/// Where the pair of these rows lies, of which row is the first one, in column `column`, 0 to 7, of the left half.
/// Neither the threads that write their slots nor those that multiply meet in a bank.
template <int halves>
SEQPAR_LANE int placeOfPair(int row, int column) {
  const int piece = row / 2 % 2;
  const int mixed = (column % 2 * 4 + row / 4 % 4) ^ (column / 2 + 4 * piece);
  return row / kPanelRows * pairsOfRows(halves) + piece * halves * kPairsOfPiece + column / 2 * 8 + mixed;
}

/// The places of a slot's pairs: in the left or right half, in the first or second column there.
template <int halves>
struct SlotPairs {
  int base;
  SEQPAR_LANE explicit SlotPairs(PanelSlot slot) : base(placeOfPair<halves>(slot.row, slot.column)) {}
  SEQPAR_LANE int at(int half, int column) const { return (base ^ 4 * column) + half * kPairsOfPiece; }
};

template <int halves>
SEQPAR_LANE float numberAt(const SplitPair* panel, int row, int column) {
  const SplitPair& pair = panel[placeOfPair<halves>(row, column % 8) + column / 8 * kPairsOfPiece];
  return pair.high[row % 2] + pair.low[row % 2];
}

/// Of a number's size, as bits: from here on it is odd, which is infinite, NaN, or rounded to infinity.
constexpr std::uint32_t kOddBits = 0x7f7ff000U;
SEQPAR_LANE std::uint32_t sizeBits(float value) {
  return asBits(value) & 0x7fffffffU;
}

/// Rounds to 11 digits, by adding half of the last one, a number that is not odd.
SEQPAR_LANE float roundToEleven(float value) {
  return asFloat((asBits(value) + 0x1000U) & 0xffffe000U);
}

/// high + low == value. An odd number is all in `high`. What tensor cores cut off of `low` is less than 2^-23 of the
/// number.
SEQPAR_LANE SplitNumber split(float value, bool odd) {
  const float high = odd ? value : roundToEleven(value);
  return {high, odd ? 0 : value - high};
}

/// Splits a slot's numbers, 4 of each half, into the panel; true if any is odd.
template <int count>
SEQPAR_LANE bool splitSlot(SplitPair* panel, PanelSlot slot, const float (&numbers)[count]) {
  std::uint32_t largest = 0;
  SEQPAR_UNROLL
  for (int i = 0; i < count; ++i) largest = sizeBits(numbers[i]) > largest ? sizeBits(numbers[i]) : largest;
  const bool odd = largest >= kOddBits;
  const SlotPairs<count / 4> place(slot);
  SEQPAR_UNROLL
  for (int i = 0; i < count / 2; ++i) {
    const SplitNumber upper = split(numbers[i / 2 * 4 + i % 2], odd);
    const SplitNumber lower = split(numbers[i / 2 * 4 + 2 + i % 2], odd);
    panel[place.at(i / 2, i % 2)] = SplitPair{{upper.high, lower.high}, {upper.low, lower.low}};
  }
  return odd;
}

SEQPAR_LANE void joinSlot(const SplitPair* panel, PanelSlot slot, float (&numbers)[8]) {
  const SlotPairs<2> place(slot);
  SEQPAR_UNROLL
  for (int i = 0; i < 4; ++i) {
    const SplitPair pair = panel[place.at(i / 2, i % 2)];
    numbers[i / 2 * 4 + i % 2] = pair.high[0] + pair.low[0];
    numbers[i / 2 * 4 + 2 + i % 2] = pair.high[1] + pair.low[1];
  }
}

/// One slot of the product, number by number. A factor of 0 forgets what it meets, infinities and NaN too.
template <int count>
SEQPAR_LANE void multiplySlot(const MatrixView& a, const SplitPair* panel, PanelSlot slot, float (&numbers)[count]) {
  SEQPAR_UNROLL
  for (int i = 0; i < count; ++i) numbers[i] = 0;
  SEQPAR_KEEP_LOOP
  for (int k = 0; k < a.dk; ++k) {
    SEQPAR_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const int row = slot.rowOf(lower);
      const float factor = row < a.dk ? a.data[row * a.rowStride + k * a.columnStride] : 0;
      if (factor == 0) continue;
      SEQPAR_UNROLL
      for (int i = 0; i < count / 2; ++i) {
        numbers[i / 2 * 4 + lower * 2 + i % 2] +=
            factor * numberAt<count / 4>(panel, k, slot.columnOf(i / 2 * 2) + i % 2);
      }
    }
  }
}

class PlainProduct {
 public:
  SEQPAR_LANE void load(const MatrixView& a) { a_ = a; }

  template <class Group, class Done>
  SEQPAR_LANE void multiply(const Group& group, const SplitPair* panel, bool, const Done& done) const {
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
