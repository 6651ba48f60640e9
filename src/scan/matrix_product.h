// The matrix product of the MATRIX operator: a library's sgemm, in the calling thread alone.
#pragma once

#include <cstddef>

namespace seqpar {

/// C (rows x columns) = A B + (add ? C : 0), row-major fp32. A is rows x inner, or, with `transposed`, inner x rows in
/// memory. The strides are those of the rows in memory. Throws InternalError if the library refuses.
void multiply(bool transposed, size_t rows, size_t columns, size_t inner, const float* a, size_t strideA,
              const float* b, size_t strideB, bool add, float* c, size_t strideC);

}  // namespace seqpar
