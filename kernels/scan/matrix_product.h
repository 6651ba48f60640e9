// The product of a transition and a panel, in the shared memory of a channel. A Product class has
//   void load(const MatrixView&): selects the next transition;
//   multiply(group, const SplitPair* panel, bool needsExact, done): calls done(fragment, numbers) for every fragment of
//     the product, on the thread that has the fragment; `needsExact` if an element of the panel does (see split()).
// This file has the reference class; matrix_tensor.h has the one for tensor cores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/scan/matrix_panel.h"

/// Precedes a rarely executed loop, to keep its code small.
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

/// This rank's transition of a head, oriented as it is applied.
SEQPAR_DEVICE MatrixView transitionOf(const MatrixScan& scan, int head) {
  const std::size_t dk = static_cast<std::size_t>(scan.dk);
  const float* const data = scan.transition + dk * dk * static_cast<std::size_t>(head);
  return scan.reverse ? MatrixView{data, 1, dk, scan.dk} : MatrixView{data, dk, 1, scan.dk};
}

/// A value as the sum of a part with 11 significant bits and a remainder.
struct SplitNumber {
  float high, low;
};

/// Two elements of a column, in rows 2 i and 2 i + 1: one load of a multiplying thread.
struct alignas(16) SplitPair {
  float high[2], low[2];
};

/// Pairs of a panel, in pieces of 8 rows and 8 columns that a warp loads at once.
SEQPAR_BOTH constexpr std::size_t pairsOf(int dk) {
  return static_cast<std::size_t>(fragmentsOf(dk)) * 4;
}
constexpr int kPairsOfPiece = 32;
/// Pairs of 16 rows of a panel that has one half (8 columns) or both.
SEQPAR_BOTH constexpr int pairsOfRows(int halves) {
  return 2 * halves * kPairsOfPiece;
}

/// Index of the pair that starts at `row`, in column `column`, 0 to 7, of the left half. Neither the stores of
/// fragments nor the loads of a product have bank conflicts.
template <int halves>
SEQPAR_DEVICE int placeOfPair(int row, int column) {
  const int piece = row / 2 % 2;
  const int mixed = (column % 2 * 4 + row / 4 % 4) ^ (column / 2 + 4 * piece);
  return row / kPanelRows * pairsOfRows(halves) + piece * halves * kPairsOfPiece + column / 2 * 8 + mixed;
}

/// Indices of a fragment's pairs: in the left or right half, in the first or second column there.
template <int halves>
struct FragmentPairs {
  int base;
  SEQPAR_DEVICE explicit FragmentPairs(PanelFragment fragment)
      : base(placeOfPair<halves>(fragment.row, fragment.column)) {}
  SEQPAR_DEVICE int at(int half, int column) const { return (base ^ 4 * column) + half * kPairsOfPiece; }
};

template <int halves>
SEQPAR_DEVICE float numberAt(const SplitPair* panel, int row, int column) {
  const SplitPair& pair = panel[placeOfPair<halves>(row, column % 8) + column / 8 * kPairsOfPiece];
  return pair.high[row % 2] + pair.low[row % 2];
}

/// Threshold of a value's magnitude, as bits: larger ones are infinite, NaN, or round to infinity, and need exact
/// arithmetic.
constexpr std::uint32_t kExactBits = 0x7f7ff000U;
SEQPAR_DEVICE std::uint32_t sizeBits(float value) {
  return asBits(value) & 0x7fffffffU;
}

/// Rounds a value below the threshold to 11 significant bits, by adding half of the last one.
SEQPAR_DEVICE float roundToEleven(float value) {
  return asFloat((asBits(value) + 0x1000U) & 0xffffe000U);
}

/// high + low == value. A value that needs exact arithmetic is stored in `high` only. Tensor cores truncate `low` by
/// less than 2^-23 of the value.
SEQPAR_DEVICE SplitNumber split(float value, bool needsExact) {
  const float high = needsExact ? value : roundToEleven(value);
  return {high, needsExact ? 0 : value - high};
}

/// Splits a fragment's elements, 4 of each half, into the panel. Returns true if any needs exact arithmetic.
template <int count>
SEQPAR_DEVICE bool splitFragment(SplitPair* panel, PanelFragment fragment, const float (&numbers)[count]) {
  std::uint32_t largest = 0;
  SEQPAR_UNROLL
  for (int i = 0; i < count; ++i) largest = sizeBits(numbers[i]) > largest ? sizeBits(numbers[i]) : largest;
  const bool needsExact = largest >= kExactBits;
  const FragmentPairs<count / 4> place(fragment);
  SEQPAR_UNROLL
  for (int i = 0; i < count / 2; ++i) {
    const SplitNumber upper = split(numbers[i / 2 * 4 + i % 2], needsExact);
    const SplitNumber lower = split(numbers[i / 2 * 4 + 2 + i % 2], needsExact);
    panel[place.at(i / 2, i % 2)] = SplitPair{{upper.high, lower.high}, {upper.low, lower.low}};
  }
  return needsExact;
}

SEQPAR_DEVICE void joinFragment(const SplitPair* panel, PanelFragment fragment, float (&numbers)[8]) {
  const FragmentPairs<2> place(fragment);
  SEQPAR_UNROLL
  for (int i = 0; i < 4; ++i) {
    const SplitPair pair = panel[place.at(i / 2, i % 2)];
    numbers[i / 2 * 4 + i % 2] = pair.high[0] + pair.low[0];
    numbers[i / 2 * 4 + 2 + i % 2] = pair.high[1] + pair.low[1];
  }
}

/// One fragment of the product, element by element. A factor of 0 discards its operand, even infinity and NaN.
template <int count>
SEQPAR_DEVICE void multiplyFragment(const MatrixView& a, const SplitPair* panel, PanelFragment fragment,
                                    float (&numbers)[count]) {
  SEQPAR_UNROLL
  for (int i = 0; i < count; ++i) numbers[i] = 0;
  SEQPAR_KEEP_LOOP
  for (int k = 0; k < a.dk; ++k) {
    SEQPAR_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const int row = fragment.rowOf(lower);
      const float factor = row < a.dk ? a.data[row * a.rowStride + k * a.columnStride] : 0;
      if (factor == 0) continue;
      SEQPAR_UNROLL
      for (int i = 0; i < count / 2; ++i) {
        numbers[i / 2 * 4 + lower * 2 + i % 2] +=
            factor * numberAt<count / 4>(panel, k, fragment.columnOf(i / 2 * 2) + i % 2);
      }
    }
  }
}

class FastProduct {
 public:
  SEQPAR_DEVICE void load(const MatrixView& a) { a_ = a; }

  template <class Group, class Done>
  SEQPAR_DEVICE void multiply(const Group& group, const SplitPair* panel, bool, const Done& done) const {
    for (int fragment = group.thread(); fragment < fragmentsOf(a_.dk); fragment += group.threads()) {
      float numbers[8];
      multiplyFragment(a_, panel, PanelFragment(fragment), numbers);
      done(fragment, numbers);
    }
  }

 private:
  MatrixView a_;
};

}  // namespace seqpar
