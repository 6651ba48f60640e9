// Products with the lower triangle of a chunk's square matrix, in blocks of kTriangle rows: the blocks above the
// diagonal are neither read nor written.
#pragma once

#include <cstddef>

#include "base/sgemm.h"

namespace seqpar::attn::linear {

constexpr size_t kTriangle = 32;  ///< rows of a block: register tiles of products are smaller

/// c = a b for the blocks of c [rows][rows] up to the diagonal.
void multiplyToLower(size_t rows, size_t inner, Factor a, Factor b, float* c, size_t strideC);

/// c = l b, or c += l b: l is lower triangular [rows][rows], or its transpose.
void multiplyLower(size_t rows, size_t columns, Factor l, Factor b, bool accumulate, float* c, size_t strideC);

/// c = l b for l as above, not transposed.
void multiplyLowerPacked(size_t rows, size_t columns, Factor l, Packed b, float* c, size_t strideC);

/// multiplyLower(), except that a term with a factor of 0 is 0 if the other factor is NaN or infinite.
void multiplyLowerForgetting(size_t rows, size_t columns, Factor l, Factor b, bool accumulate, float* c,
                             size_t strideC);

}  // namespace seqpar::attn::linear
