// The product of a transition and a panel on tensor cores, with nearly fp32 accuracy: an element is the sum of two
// parts that the tensor cores represent exactly, or except for the last bit; the smallest of their products is omitted.
//
// Warp is the threads of a warp, all static: int thread(), among the threads that work on a panel; bool any(bool); and
// multiplyTile(c, a, b): c += a b, where a is 16 x 8 and b 8 x 8, in the layout of mma.m16n8k8, which reads 11
// significant bits.
#pragma once

#include "kernels/scan/matrix_product.h"

namespace seqpar {

constexpr int kTensorThreads = 256;

struct alignas(16) FourFloats {
  float at[4];
};

/// The kinds of matrices that a kernel supports; code for other kinds is not compiled.
enum class Matrices {
  Any,
  Rows,     ///< Depth x Depth, rows are dense and aligned to four elements
  Columns,  ///< the same for columns
};

/// 16 rows of a matrix, up to `Depth` columns, in the registers of a warp. In 16 x 16 pieces a thread has four adjacent
/// elements of two rows.
template <class Warp, int Depth, Matrices kind>
class HeldRows {
 public:
  static constexpr int kSteps = Depth / 16;
  static_assert(Depth % 16 == 0 && Depth <= 128);

  /// Loads starting at `row` and `column`; elements outside the matrix are zero.
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

  /// True if a row of the warp contains an element that needs exact arithmetic.
  SEQPAR_DEVICE bool stateNeedsExact() const {
    std::uint32_t largest = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kSteps * 8; ++i) {
      const std::uint32_t size = sizeBits(at_[i / 8][i / 4 % 2][i % 4]);
      largest = size > largest ? size : largest;
    }
    return Warp::any(largest >= kExactBits);
  }

  /// Adds the product with the first `depth` rows of `panel`. Small terms have separate sums, to keep their digits.
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

  /// Adds all sums of a fragment.
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
  /// Four adjacent elements of a row of any matrix.
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

/// Multiplies matrices of any size, for CTAs of kTensorThreads. A warp has 16 rows and up to 128 columns of the
/// transition in registers; larger transitions are reloaded for each panel.
template <class Warp>
class TensorProduct {
 public:
  /// Matrices this small are not worth a tile; their sums are too short to hide the omitted product.
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

  /// One tile of the product. Returns false if its rows contain an element that needs exact arithmetic.
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

/// Multiplies matrices of one size, with twice as many threads as rows: a thread has one fragment.
template <class Warp, int Depth, Matrices kind>
class ExactProduct {
 public:
  /// Only issues the loads of the matrix; endStep() waits for them.
  SEQPAR_DEVICE void load(const MatrixView& a) {
    a_ = a;
    rows_.load(a, Warp::thread() / 32 * kPanelRows, 0);
  }
  SEQPAR_DEVICE void endStep() { needsExact_ = rows_.stateNeedsExact(); }

  /// The thread's own fragment of the product with one half of a panel or with both.
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
