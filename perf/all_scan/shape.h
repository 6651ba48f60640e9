// What shape a size in bytes stands for.
#pragma once

#include <cstddef>

namespace seqpar::perf {

/// A state of heads x dk x dv elements.
struct Shape {
  size_t heads = 0, dk = 0, dv = 0;
  size_t elements() const { return heads * dk * dv; }
  size_t rows() const { return heads * dk; }
};

/// What the caller fixed; 0: left open.
struct ShapeWish {
  size_t heads = 0, dk = 0, dv = 0;
};

/// A shape of at most `elements` elements. Heads are 128 x 128 unless wished otherwise, and as many as fit; below one
/// head, that head gets fewer rows, and then fewer columns. With heads wished, dv is what fits, unless wished too.
/// Throws UsageError if nothing fits.
Shape shapeFor(size_t elements, const ShapeWish& wish);

}  // namespace seqpar::perf
