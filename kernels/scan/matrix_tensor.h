// The product of a transition and a panel on tensor cores, near the accuracy of fp32: numbers are sums of two that the
// tensor cores take whole, or but for the last digit, of whose products the least one is left out.
//
// Warp is the threads that a tensor core serves together, all static: int thread(), of those that work on a panel;
// bool any(bool); and multiplyTile(c, a, b): c += a b for a 16 x 8, b 8 x 8, as the instruction mma.m16n8k8 holds them,
// of which it reads 11 digits.
#pragma once

#include "kernels/scan/matrix_product.h"

namespace seqpar {

constexpr int kTensorThreads = 256;

struct alignas(16) FourFloats {
  float at[4];
};

/// Which matrices there are, so that no code is there for others.
enum class Matrices {
  Any,
  Rows,     ///< Depth x Depth, rows lie together and are aligned to four numbers
  Columns,  ///< the same of columns
};

/// 16 rows of a matrix, up to `Depth` columns of it, in the registers of a warp. In 16 x 16 pieces a thread has four
/// neighbors of two rows.
template <class Warp, int Depth, Matrices kind>
class HeldRows {
 public:
  static constexpr int kSteps = Depth / 16;
  static_assert(Depth % 16 == 0 && Depth <= 128);

  /// From `row` and `column` on; beyond the matrix there are zeros.
  SEQPAR_DEVICE void load(const MatrixView& a, int row, int column) {
    const int channel = Warp::thread() % 32;
    const int first = row + channel / 4 * 2;
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int k = column + 16 * step + channel % 4 * 4;
      if (kind == Matrices::Rows) {
        SEQPAR_UNROLL
        for (int lower = 0; lower < 2; ++lower) {
          const FourFloats all = *reinterpret_cast<const FourFloats*>(a.data + (first + lower) * Depth + k);
          SEQPAR_UNROLL
          for (int i = 0; i < 4; ++i) at_[step][lower][i] = all.at[i];
        }
      } else if (kind == Matrices::Columns) {
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          const TwoFloats two = *reinterpret_cast<const TwoFloats*>(a.data + first + (k + i) * Depth);
          at_[step][0][i] = two.left;
          at_[step][1][i] = two.right;
        }
      } else {
        SEQPAR_UNROLL
        for (int lower = 0; lower < 2; ++lower) loadFour(a, first + lower, k, at_[step][lower]);
      }
    }
  }

  /// True if a row of the warp holds an inexact number.
  SEQPAR_DEVICE bool stateNeedsExact() const {
    std::uint32_t largest = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kSteps * 8; ++i) {
      const std::uint32_t size = sizeBits(at_[i / 8][i / 4 % 2][i % 4]);
      largest = size > largest ? size : largest;
    }
    return Warp::any(largest >= kExactBits);
  }

  /// The product with the first `depth` rows of `panel` is added to that of other columns. Sums of small numbers are
  /// apart, and keep their digits.
  template <int halves>
  SEQPAR_DEVICE void multiply(const SplitPair* panel, int depth, float (&large)[halves][4],
                              float (&small)[2][4]) const {
    const int channel = Warp::thread() % 32;
    const int place = channel ^ channel / 8;
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      if (kind == Matrices::Any && 16 * step >= depth) break;
      SEQPAR_UNROLL
      for (int piece = 0; piece < 2; ++piece) {
        const SplitPair* const from =
            panel + step * pairsOfRows(halves) + piece * halves * kPairsOfPiece + (place ^ 4 * piece);
        std::uint32_t high[4], low[4];
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float number = at_[step][i % 2][2 * piece + i / 2];
          const float rounded = roundToEleven(number);
          high[i] = asBits(rounded);
          low[i] = asBits(number - rounded);
        }
        SEQPAR_UNROLL
        for (int half = 0; half < halves; ++half) {
          const SplitPair pair = from[half * kPairsOfPiece];
          const std::uint32_t highs[2] = {asBits(pair.high[0]), asBits(pair.high[1])};
          const std::uint32_t lows[2] = {asBits(pair.low[0]), asBits(pair.low[1])};
          Warp::multiplyTile(small[half], high, lows);
          Warp::multiplyTile(large[half], high, highs);
          Warp::multiplyTile(small[halves == 1 ? 1 : half], low, highs);
        }
      }
    }
  }

  /// All sums of a fragment.
  template <int halves>
  SEQPAR_DEVICE static void add(const float (&large)[halves][4], const float (&small)[2][4],
                                float (&numbers)[4 * halves]) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4 * halves; ++i) {
      const float rest = halves == 1 ? small[0][i % 4] + small[1][i % 4] : small[i / 4][i % 4];
      numbers[i] = large[i / 4][i % 4] + rest;
    }
  }

 private:
  /// Four neighbors of a row of any matrix.
  SEQPAR_DEVICE static void loadFour(const MatrixView& a, int row, int column, float (&four)[4]) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) four[i] = 0;
    if (row >= a.dk || column >= a.dk) return;
    const float* const from = a.data + row * a.rowStride + column * a.columnStride;
    if (a.columnStride == 1 && a.rowStride % 4 == 0 && a.dk % 4 == 0 &&
        reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0) {
      const FourFloats all = *reinterpret_cast<const FourFloats*>(from);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) four[i] = all.at[i];
    } else {
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (column + i < a.dk) four[i] = from[i * a.columnStride];
      }
    }
  }

  float at_[kSteps][2][4];
};

/// What multiplies matrices of any size, for CTAs of kTensorThreads. A warp has 16 rows of the transition in registers,
/// up to 128 columns of it; larger ones are loaded anew for each panel.
template <class Warp>
class TensorProduct {
 public:
  /// Matrices as small are not worth a tile; their sums are too short to hide the product that is left out.
  static constexpr int kSmall = 16;

  SEQPAR_DEVICE void load(const MatrixView& a) {
    a_ = a;
    if (a.dk > kDepth) return;
    rows_.load(a, Warp::thread() / 32 * kPanelRows, 0);
    needsExact_ = rows_.stateNeedsExact();
  }

  template <class Group, class Done>
  SEQPAR_DEVICE void multiply(const Group&, const SplitPair* panel, bool needsExact, const Done& done) {
    const int tiles = fragmentsOf(a_.dk) / 32;
    for (int tile = Warp::thread() / 32; tile < tiles; tile += kTensorThreads / 32) {
      const int fragment = tile * 32 + Warp::thread() % 32;
      float numbers[8];
      if (needsExact || a_.dk <= kSmall || !multiplyRows(tile, panel, numbers)) {
        multiplyFragment(a_, panel, PanelFragment(fragment), numbers);
      }
      done(fragment, numbers);
    }
  }

 private:
  static constexpr int kDepth = 128;

  /// One tile of the product. False if its rows hold an inexact number.
  SEQPAR_DEVICE bool multiplyRows(int tile, const SplitPair* panel, float (&numbers)[8]) {
    float large[2][4] = {}, small[2][4] = {};
    for (int column = 0; column < a_.dk; column += kDepth) {
      if (a_.dk > kDepth) {
        rows_.load(a_, tile * kPanelRows, column);
        needsExact_ = rows_.stateNeedsExact();
      }
      if (needsExact_) return false;
      rows_.multiply(panel + column / kPanelRows * pairsOfRows(2), a_.dk - column, large, small);
    }
    rows_.add(large, small, numbers);
    return true;
  }

  MatrixView a_;
  bool needsExact_ = false;
  HeldRows<Warp, kDepth, Matrices::Any> rows_;
};

/// What multiplies matrices of one size, for twice as many threads as they have rows: a thread has one fragment.
template <class Warp, int Depth, Matrices kind>
class ExactProduct {
 public:
  /// Only asks for the matrix; settle() waits for it.
  SEQPAR_DEVICE void load(const MatrixView& a) {
    a_ = a;
    rows_.load(a, Warp::thread() / 32 * kPanelRows, 0);
  }
  SEQPAR_DEVICE void settle() { needsExact_ = rows_.stateNeedsExact(); }

  /// The thread's own fragment of the product with a panel of one half or of both.
  template <int count>
  SEQPAR_DEVICE void multiply(int fragment, const SplitPair* panel, bool needsExact, float (&numbers)[count]) const {
    if (needsExact || needsExact_) {
      multiplyFragment(a_, panel, PanelFragment(fragment), numbers);
      return;
    }
    float large[count / 4][4] = {}, small[2][4] = {};
    rows_.multiply(panel, Depth, large, small);
    rows_.add(large, small, numbers);
  }

 private:
  MatrixView a_;
  bool needsExact_ = false;
  HeldRows<Warp, Depth, kind> rows_;
};

}  // namespace seqpar
