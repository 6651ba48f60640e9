// Layouts of the matrices that a warp holds in registers, and of their loads: the only file with arithmetic on lanes
// for the fragments of mma.h and wgmma.h.
#pragma once

#include "kernels/arch/device.h"

namespace seqpar::ptx {

/// Accumulators of 16 x 8 tiles, next to each other: C of mma.h, or a warp's 16 rows of D of wgmma.h. A lane has four
/// elements e of each tile; element e of tile n has index 4 n + e.
struct AccumulatorLayout {
  int lane;

  SEQPAR_DEVICE int row(int index = 0) const { return lane / 4 + 8 * (index / 2 % 2); }
  SEQPAR_DEVICE int column(int index = 0) const { return 8 * (index / 4) + 2 * (lane % 4) + index % 2; }
  /// Term `index`, 0 to 3, of a row of the same values as A of a product with 16 terms.
  SEQPAR_DEVICE int term(int index) const { return 2 * (lane % 4) + index % 2 + 8 * (index / 2); }
};

/// Operands of mma.m16n8k8 in TF32: element i of A, and of B with i < 2.
struct Tf32Layout {
  int lane;

  SEQPAR_DEVICE int row(int index) const { return lane / 4 + 8 * (index % 2); }   ///< of A
  SEQPAR_DEVICE int column() const { return lane / 4; }                           ///< of B
  SEQPAR_DEVICE int term(int index) const { return lane % 4 + 4 * (index / 2); }  ///< of A
  SEQPAR_DEVICE int termOfB(int index) const { return lane % 4 + 4 * (index % 2); }
};

/// The row of 8 elements of a 16 x 16 tile whose address a lane passes to ldmatrix.x4 or stmatrix.x4: a row, and a half
/// of the columns.
struct MatrixRow {
  int row, half;

  /// Matrices in the order upper left, lower left, upper right, lower right: A of the tile.
  static SEQPAR_DEVICE MatrixRow down(int lane) { return {lane % 16, lane / 16}; }
  /// Upper left, upper right, lower left, lower right: B of the transpose and, with .trans, A of the transpose.
  static SEQPAR_DEVICE MatrixRow across(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2}; }
};

}  // namespace seqpar::ptx
