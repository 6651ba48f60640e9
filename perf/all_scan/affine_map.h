// The arithmetic of the MPI peers: fp32 maps x -> A x + S, as an MPI user would write it.
#pragma once

#include <cstddef>

#include "seqpar/seqpar.h"
#include "shape.h"

namespace seqpar::perf {

/// The shape of a map, and where its parts lie.
struct AffineMap {
  seqparScanOp_t op;
  bool transposed;  ///< x -> A^T x, as MATRIX does in reverse
  Shape shape;

  size_t coefficients() const;
  /// What can be computed alone, in order of memory: rows, or heads for MATRIX.
  size_t units() const { return op == seqparScanMatrix ? shape.heads : shape.rows(); }
  size_t unitElements() const { return op == seqparScanMatrix ? shape.dk * shape.dv : shape.dv; }

  /// out = A x + S of the units [begin, end). All arrays are whole; x == nullptr stands for zeros. x, s and out may be
  /// the same array except for MATRIX.
  void apply(const float* a, const float* s, const float* x, float* out, size_t begin, size_t end) const;

  /// The composition: laterA <- laterA earlierA, laterS <- laterA earlierS + laterS.
  void compose(const float* earlierA, const float* earlierS, float* laterA, float* laterS) const;
};

}  // namespace seqpar::perf
