// Products of the gradients' kernel for groups of heads (group_sm90.h) with images of states (chunk_states.h): 64 or
// 128 channels x 64 columns of v or, transposed, 80 columns x 128 channels.
#pragma once

#include "kernels/attn/linear/backward/group_memory_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, class Shape>
struct GroupImages {
  static constexpr bool kWide = Shape::kWide;
  static constexpr int kColumns = Shape::kColumns, kKeys = Shape::kKeys;
  static constexpr int kSteps = kColumns / 16, kKeySteps = kKeys / 16;
  static constexpr int kImagePanel = kColumns * kPanel;  ///< kWide: 64 channels
  using Words = uint32_t[kSteps][4];                     ///< columns of rows of a tile, as A of products
  using Wide = float[kKeys / 8][4];                      ///< a tile of all channels

  /// Starts c (+)= tile image for columns from `first` on. `tile`: of the image's channels.
  template <int N>
  SEQPAR_DEVICE static void multiply(float (&c)[N][4], const T* tile, const T* image, int first, bool add = false) {
    if constexpr (kWide) {
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kKeySteps>(
          c, Operand{tile, kTilePanelBytes}, kChunk, Operand{image + first * kPanel}, kColumns, add);
    } else {
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, kKeySteps>(c, Operand{tile, kTilePanelBytes}, kChunk,
                                                                          Operand{image + first}, kKeys, add);
    }
  }
  /// Starts one step of 16 columns of c += a image^T.
  SEQPAR_DEVICE static void addStep(Wide& c, const uint32_t (&a)[4], const T* image, int step) {
    if constexpr (kWide) {
      warpgroup::multiplyStep<T, Terms::Rows>(c, a, Operand{image, kImagePanel * int{sizeof(T)}}, kColumns, step, true);
    } else {
      warpgroup::multiplyStep<T, Terms::AlongRows>(c, a, Operand{image}, kKeys, step, true);
    }
  }
  /// Starts c = tile image^T for channels 32 part to 32 part + 31. `tile`: of v or dOut.
  SEQPAR_DEVICE static void multiplyPart(float (&c)[4][4], const T* tile, const T* image, int part) {
    if constexpr (kWide) {
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, kSteps>(
          c, Operand{tile}, kChunk, Operand{image + part / 2 * kImagePanel + part % 2 * 32}, kColumns, false);
    } else {
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(
          c, Operand{tile}, kChunk, Operand{image + part * 32 * kPanel}, kKeys, false);
    }
  }
  /// Loads this warp's rows of a tile of v or dOut.
  SEQPAR_DEVICE static void load(Words& words, const T* tile, const GroupPosition& me) {
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      ptx::ldmatrixX4(words[step], me.at(tile + step / 4 * kTilePanel, step % 4 * 2));
    }
  }
  /// Multiplies each row by a factor.
  SEQPAR_DEVICE static void scale(Words& words, const float (&by)[2]) {
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = words[step][i];
        words[step][i] = ptx::pack<T>(ptx::lowOf<T>(word) * by[i % 2], ptx::highOf<T>(word) * by[i % 2]);
      }
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
