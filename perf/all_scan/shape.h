// The shape of a state for a size in bytes.
#pragma once

#include <cstddef>

namespace seqpar::perf {

/// A state of heads x dk x dv elements.
struct Shape {
  size_t heads = 0, dk = 0, dv = 0;
  size_t elements() const { return heads * dk * dv; }
  size_t rows() const { return heads * dk; }
};

/// The caller's constraints; 0: none.
struct ShapeRequest {
  size_t heads = 0, dk = 0, dv = 0;
};

/// A shape of at most `elements` elements. Heads are 128 x 128 unless constrained, and as many as fit; if one head does
/// not fit, it gets fewer rows, and then fewer columns. With given heads, dv is the largest that fits, unless given as
/// well. Throws UsageError if nothing fits.
Shape shapeFor(size_t elements, const ShapeRequest& request);

}  // namespace seqpar::perf
