// The arithmetic of the MPI peers: fp32 maps x -> A x + S, as an MPI user would write it.
#pragma once

#include <cstddef>

#include "seqpar/seqpar.h"
#include "shape.h"

namespace seqpar::perf {

/// The shape of a map, and the layout of its parts.
struct AffineMap {
  seqparScanOp_t op;
  bool transposed;  ///< x -> A^T x, as MATRIX does in reverse
  Shape shape;

  size_t coefficients() const;
  /// Independent units in memory order: rows, or heads for MATRIX.
  size_t units() const { return op == seqparScanMatrix ? shape.heads : shape.rows(); }
  size_t unitElements() const { return op == seqparScanMatrix ? shape.dk * shape.dv : shape.dv; }

  /// out = A x + S for a range of units, excluding the last bound. All arrays are whole; x == nullptr means zeros. x, s
  /// and out may be equal except for MATRIX.
  void apply(const float* a, const float* s, const float* x, float* out, size_t begin, size_t end) const;

  /// The composition: laterA <- laterA earlierA, laterS <- laterA earlierS + laterS.
  void compose(const float* earlierA, const float* earlierS, float* laterA, float* laterS) const;
};

}  // namespace seqpar::perf
