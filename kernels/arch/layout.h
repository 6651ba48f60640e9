// Layouts of the matrices that a warp holds in registers, and of their loads: the arithmetic on lanes for the fragments
// of mma.h and wgmma.h. `first` is the row or column of the tile's first element; it is added first, so that compilers
// keep the sums that several elements share. Some kernels still contain copies with another order of additions.
#pragma once

#include "kernels/arch/device.h"

namespace seqpar::ptx {

/// An accumulator tile of 16 x 8: C of mma.h, or a warp's 16 rows of D of wgmma.h. A lane has elements e = 0 to 3. In
/// an array of adjacent tiles, element i is element i % 4 of tile i / 4.
struct AccumulatorLayout {
  int lane;

  SEQPAR_DEVICE int row(int first = 0, int e = 0) const { return first + lane / 4 + 8 * (e / 2 % 2); }
  SEQPAR_DEVICE int column(int first = 0, int e = 0) const { return first + 2 * (lane % 4) + e % 2; }
  /// Term i = 0 to 3 of a row of the same values as A of a product with 16 terms.
  SEQPAR_DEVICE int term(int first, int i) const { return first + 2 * (lane % 4) + i % 2 + 8 * (i / 2); }
};

/// Operands of mma.m16n8k8 in TF32: element i of A, and of B with i < 2.
struct Tf32Layout {
  int lane;

  SEQPAR_DEVICE int row(int first, int i) const { return first + lane / 4 + 8 * (i % 2); }   ///< of A
  SEQPAR_DEVICE int column(int first) const { return first + lane / 4; }                     ///< of B
  SEQPAR_DEVICE int term(int first, int i) const { return first + lane % 4 + 4 * (i / 2); }  ///< of A
  SEQPAR_DEVICE int termOfB(int first, int i) const { return first + lane % 4 + 4 * (i % 2); }
};

/// The row of 8 elements of a 16 x 16 tile whose address a lane passes to ldmatrix.x4 or stmatrix.x4: a row, and a half
/// of the columns. Matrices in the order upper left, lower left, upper right, lower right: A of the tile.
struct MatrixRows {
  int lane;

  SEQPAR_DEVICE int row(int first = 0) const { return first + lane % 16; }
  SEQPAR_DEVICE int half() const { return lane / 16; }
};
/// Upper left, upper right, lower left, lower right: B of the transpose and, with .trans, A of the transpose.
struct MatrixRowsAcross {
  int lane;

  SEQPAR_DEVICE int row(int first = 0) const { return first + lane % 8 + lane / 16 * 8; }
  SEQPAR_DEVICE int half() const { return lane / 8 % 2; }
};

}  // namespace seqpar::ptx
