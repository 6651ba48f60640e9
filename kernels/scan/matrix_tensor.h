// The product of a transition and a panel on tensor cores, near the accuracy of fp32: numbers are sums of two that the
// tensor cores take whole, of whose products the least one is left out.
//
// Warp is the threads that a tensor core serves together, all static: int thread(), of the CTA; bool any(bool); and
// multiplyTile(c, a, b): c += a b for a 16 x 8, b 8 x 8, as the instruction mma.m16n8k8 holds them, of which it reads
// 11 digits.
#pragma once

#include "scan/matrix_product.h"

namespace seqpar {

constexpr int kTensorThreads = 256;

struct alignas(16) FourFloats {
  float at[4];
};

/// For CTAs of kTensorThreads. A warp has 16 rows of the transition in registers, up to `Depth` columns of it (at most
/// 128, which is also the number of rows that all warps have). `Exact`: matrices have that many rows and columns, and
/// no code is there for others. Larger ones are loaded anew for each panel.
template <class Warp, int Depth, bool Exact>
class TensorProduct {
 public:
  /// Matrices as small are not worth a tile; their sums are too short to hide the product that is left out.
  static constexpr int kSmall = 16;

  SEQPAR_LANE void load(const MatrixView& a) {
    a_ = a;
    whole_ = a.columnStride == 1 && a.rowStride % 4 == 0 && a.dk % 4 == 0 &&
             reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0;
    if (Exact || a.dk <= Depth) odd_ = fetch(Warp::thread() / 32, 0);
  }

  template <class Group, class Done>
  SEQPAR_LANE void multiply(const Group&, const SplitNumber* panel, bool odd, const Done& done) {
    const int tiles = slotsOf(a_.dk) / 32;
    for (int tile = Warp::thread() / 32; tile < tiles; tile += kTensorThreads / 32) {
      const int slot = tile * 32 + Warp::thread() % 32;
      float numbers[8];
      if (odd || (!Exact && a_.dk <= kSmall) || !multiplyRows(tile, panel, numbers)) {
        multiplySlot(a_, panel, PanelSlot(slot), numbers);
      }
      done(slot, numbers);
      if (Exact) break;
    }
  }

 private:
  static constexpr int kSteps = Depth / 16;
  static constexpr bool kEveryWarp = Exact && Depth == kTensorThreads / 2;  ///< has rows, all of them whole
  static_assert(Depth % 16 == 0 && Depth <= 128);

  /// A tile's rows of 16 x 16 pieces: in a piece a thread has four neighbours of two rows.
  SEQPAR_LANE bool fetch(int tile, int column) {
    const int lane = Warp::thread() % 32;
    bool odd = false;
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int k = column + 16 * step + lane % 4 * 4;
      SEQPAR_UNROLL
      for (int lower = 0; lower < 2; ++lower) {
        const int row = tile * 16 + lane / 4 + 8 * lower;
        float(&four)[4] = held_[step][lower];
        four[0] = four[1] = four[2] = four[3] = 0;
        if (!kEveryWarp && (row >= a_.dk || k >= a_.dk)) continue;
        const float* const from = a_.data + row * a_.rowStride + k * a_.columnStride;
        if (whole_) {
          const FourFloats all = *reinterpret_cast<const FourFloats*>(from);
          four[0] = all.at[0];
          four[1] = all.at[1];
          four[2] = all.at[2];
          four[3] = all.at[3];
        } else {
          SEQPAR_UNROLL
          for (int i = 0; i < 4; ++i) {
            if (Exact || k + i < a_.dk) four[i] = from[i * a_.columnStride];
          }
        }
      }
    }
    SEQPAR_UNROLL
    for (int i = 0; i < kSteps * 8; ++i) {
      float rounded;
      odd |= roundsToOdd(held_[i / 8][i / 4 % 2][i % 4], rounded);
    }
    return Warp::any(odd);
  }

  /// One tile of the product. False if its rows hold an odd number.
  SEQPAR_LANE bool multiplyRows(int tile, const SplitNumber* panel, float (&numbers)[8]) {
    float large[2][4] = {}, small[2][2][4] = {};
    if (Exact) {
      if (odd_) return false;
      multiplyHeld(panel, Depth, large, small);
    } else {
      for (int column = 0; column < a_.dk; column += Depth) {
        if (a_.dk > Depth) odd_ = fetch(tile, column);
        if (odd_) return false;
        multiplyHeld(panel + column * kPairStride, a_.dk - column, large, small);
      }
    }
    SEQPAR_UNROLL
    for (int i = 0; i < 8; ++i) numbers[i] = large[i / 4][i % 4] + (small[0][i / 4][i % 4] + small[1][i / 4][i % 4]);
    return true;
  }

  /// Adds the product of what is held and of `depth` rows. The accumulators that are apart make short chains, and sums
  /// of small numbers keep their digits.
  SEQPAR_LANE void multiplyHeld(const SplitNumber* panel, int depth, float (&large)[2][4],
                                float (&small)[2][2][4]) const {
    const int lane = Warp::thread() % 32;
    const SplitNumber* const mine = panel + lane % 4 * 4 * kPairStride + lane / 4;
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      if (!Exact && 16 * step >= depth) break;
      SEQPAR_UNROLL
      for (int two = 0; two < 4; two += 2) {
        std::uint32_t high[4], low[4];
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float number = held_[step][i % 2][two + i / 2];
          float rounded;
          roundsToOdd(number, rounded);
          high[i] = asBits(rounded);
          low[i] = asBits(number - rounded) + 0x1000U;  // what lies below the 11 digits is not looked at
        }
        SEQPAR_UNROLL
        for (int half = 0; half < 2; ++half) {
          const SplitNumber* const from = mine + (16 * step + two) * kPairStride + 8 * half;
          const SplitNumber first = from[0], second = from[kPairStride];
          const std::uint32_t highs[2] = {asBits(first.high), asBits(second.high)};
          const std::uint32_t lows[2] = {asBits(first.low) + 0x1000U, asBits(second.low) + 0x1000U};
          Warp::multiplyTile(large[half], high, highs);
          Warp::multiplyTile(small[0][half], high, lows);
          Warp::multiplyTile(small[1][half], low, highs);
        }
      }
    }
  }

  MatrixView a_;
  bool whole_ = false, odd_ = false;
  float held_[kSteps][2][4];
};

}  // namespace seqpar
